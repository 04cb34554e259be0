"""Claim mappers and authorizers of users: by the name of a Python entry point, or as `module:attribute`."""

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final, cast

from fairlead.authorization.authorizer import Authorizer, DefaultAuthorizer
from fairlead.authorization.claims import ClaimMapper
from fairlead.core.errors import FixRequest
from fairlead.settings.static.authorization import DEFAULT, AuthorizationConfig

AUTHORIZERS: Final = "fairlead.authorizers"
CLAIM_MAPPERS: Final = "fairlead.claim_mappers"


class UnknownPlugin(FixRequest):
    """The configured claim mapper or authorizer can't be found or made."""


def make_authorizer(config: AuthorizationConfig) -> Authorizer:
    """The configured authorizer. A factory is called with the configuration."""
    if config.authorizer == DEFAULT:
        return DefaultAuthorizer()
    return cast(Authorizer, _made(AUTHORIZERS, "authorizer", config.authorizer, "authorize", config))


def make_claim_mapper(config: AuthorizationConfig) -> ClaimMapper | None:
    """The configured claim mapper, unless it is the default one, for JWTs, or there is none."""
    if config.claim_mapper in ("", DEFAULT):
        return None
    return cast(ClaimMapper, _made(CLAIM_MAPPERS, "claimMapper", config.claim_mapper, "claims", config))


def _made(group: str, key: str, name: str, method: str, config: AuthorizationConfig) -> Any:
    found = next(iter(entry_points(group=group, name=name)), None)
    try:
        if found is not None:
            factory = found.load()
        else:
            module, separator, attribute = name.partition(":")
            if not separator:
                module, _, attribute = name.rpartition(".")
            factory = getattr(import_module(module), attribute)
        made = factory(config)
    except Exception as wrong:
        raise UnknownPlugin(
            f"authorization.{key}: {name!r} can't be used ({type(wrong).__name__}: {wrong}): give the name of an entry "
            f"point in the group {group}, or MODULE:FACTORY"
        ) from wrong
    if not callable(getattr(made, method, None)):
        raise UnknownPlugin(f"authorization.{key}: {name!r} makes a {type(made).__name__}, which has no {method}()")
    return made

"""A claim mapper and an authorizer as a user writes them."""

from fairlead.authorization import AuthInfo, AuthorizationTarget, Claims, Decision, Role
from fairlead.settings.static.authorization import AuthorizationConfig


class Mapper:
    def __init__(self, config: AuthorizationConfig) -> None:
        self.config = config

    def claims(self, info: AuthInfo) -> Claims | None:
        return Claims(info.token.removeprefix("Bearer "), Role.READER) if info.token else None


class OnlyAlice:
    def __init__(self, _: AuthorizationConfig) -> None:
        pass

    async def authorize(self, claims: Claims | None, _: AuthorizationTarget) -> Decision:
        return Decision(is_allowed=claims is not None and claims.subject == "alice")


def not_a_plugin(_: AuthorizationConfig) -> object:
    return object()

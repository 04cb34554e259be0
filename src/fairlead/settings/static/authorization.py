"""Section `global.authorization` of the static configuration, with Temporal's keys and a few of our own."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from fairlead.settings.dynamic.kinds import Bool, Duration, Plain
from fairlead.settings.problem import InvalidValue
from fairlead.settings.static.section import Section
from fairlead.settings.static.store import parse_file_name
from fairlead.settings.static.tls import Pem

DEFAULT: Final = "default"
KEYS_REFRESH_S: Final = 60.0
SOURCES_MAX: Final = 32
GRANTS_MAX: Final = 10_000
TEXT_CHARACTERS_MAX: Final = 1_000
_LOOPBACK: Final = frozenset(("127.0.0.1", "::1", "localhost"))
# Authorities of one certificate's grant.
AUTHORITIES_MAX: Final = 100
_FINGERPRINT = re.compile(r"[0-9a-f]{64}", re.ASCII)
_HEADER = re.compile(r"[0-9a-z_.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class CertificateGrant:
    """Rights of the holder of a client certificate: `name` is its common name or an alternative name.

    `permissions` are pairs of namespace and role. `cluster` is the remote cluster to which the certificate belongs.
    One of `authorities` (SHA-256 fingerprints) or of `authority_files` must have signed the certificate; without both,
    one of the authorities that count for all host names.
    """

    name: str
    permissions: tuple[tuple[str, str], ...] = ()
    cluster: str = ""
    authorities: tuple[str, ...] = ()
    authority_files: tuple[Pem, ...] = ()


@dataclass(frozen=True, slots=True)
class AuthorizationConfig:
    """Validated configuration of authorization; without an authorizer, every caller may do everything."""

    authorizer: str = ""
    claim_mapper: str = ""
    key_sources: tuple[str, ...] = ()
    keys_refresh_s: float = KEYS_REFRESH_S
    permissions_claim: str = "permissions"
    permissions_regex: str = ""
    header: str = "authorization"
    extras_header: str = "authorization-extras"
    audience: str = ""
    certificates: tuple[CertificateGrant, ...] = ()

    @property
    def is_on(self) -> bool:
        """Whether callers must be authorized."""
        return bool(self.authorizer)


def read_authorization(section: Section, folder: Path = Path()) -> AuthorizationConfig:
    """Read the section `authorization`; file names are relative to `folder`."""
    keys = section.section("jwtKeyProvider")
    remote = section.section("remoteClusterAuth")
    grants: list[CertificateGrant] = []
    certificates = section.section("certificates")
    for name, grant in certificates.sections():
        if len(grants) >= GRANTS_MAX:
            certificates.complain_of(name, f" is above the limit of {GRANTS_MAX} certificates: remove some")
            break
        none: tuple[tuple[str, str], ...] = ()
        permissions = grant.value("permissions", _parse_permissions, none)
        cluster = grant.value("cluster", _parse_text, "")
        no_names: tuple[str, ...] = ()
        no_files: tuple[Pem, ...] = ()
        authorities = grant.value("authorities", _parse_fingerprints, no_names)
        files = grant.value("authorityFiles", lambda raw: _parse_files(raw, folder), no_files)
        grant.close()
        grants.append(CertificateGrant(name, permissions, cluster, authorities, files))
    config = AuthorizationConfig(
        authorizer=section.value("authorizer", _parse_text, ""),
        claim_mapper=section.value("claimMapper", _parse_text, ""),
        key_sources=keys.value("keySourceURIs", _parse_sources, (), is_secret=True),
        keys_refresh_s=keys.value("refreshInterval", Duration(0.0, 86_400.0).parse, KEYS_REFRESH_S),
        permissions_claim=section.value("permissionsClaimName", _parse_text, "") or "permissions",
        permissions_regex=section.value("permissionsRegex", _parse_regex, ""),
        header=section.value("authHeaderName", _parse_header, "") or "authorization",
        extras_header=section.value("authExtraHeaderName", _parse_header, "") or "authorization-extras",
        audience=section.value("audience", _parse_text, ""),
        certificates=tuple(grants),
    )
    # Accepted, without effect: with an authorizer, other clusters must always authenticate.
    remote.value("require", Bool().parse, default=True)
    if config.claim_mapper == DEFAULT and not config.key_sources:
        section.complain_of("claimMapper", " is default, but jwtKeyProvider.keySourceURIs has no sources: give one")
    if not config.is_on and (config.claim_mapper or config.certificates):
        section.complain_here("has no authorizer, so that every caller may do everything: write authorizer: default")
    for each in (keys, remote, certificates, section):
        each.close()
    return config


def _parse_text(raw: Plain) -> str:
    if not isinstance(raw, str) or len(raw) > TEXT_CHARACTERS_MAX:
        raise InvalidValue(f"is not a text of at most {TEXT_CHARACTERS_MAX} characters")
    return raw


def _parse_header(raw: Plain) -> str:
    text = _parse_text(raw).lower()
    if text and not _HEADER.fullmatch(text):
        raise InvalidValue("is not the name of a header")
    return text


def _parse_regex(raw: Plain) -> str:
    text = _parse_text(raw)
    if not text:
        return text
    try:
        groups = re.compile(text).groupindex
    except re.error as wrong:
        raise InvalidValue(f"is not a regular expression: {wrong}") from wrong
    if not {"namespace", "role"} <= groups.keys():
        raise InvalidValue("has no groups named namespace and role, as in ^(?P<namespace>\\w+):(?P<role>\\w+)$")
    return text


def _parse_sources(raw: Plain) -> tuple[str, ...]:
    if not isinstance(raw, list) or len(raw) > SOURCES_MAX:
        raise InvalidValue(f"is not a list of at most {SOURCES_MAX} addresses")
    return tuple(_parse_source(each) for each in raw if each != "")


def _parse_source(raw: Plain) -> str:
    text = _parse_text(raw)
    try:
        parts = urlsplit(text)
        host = parts.hostname
        if "@" in parts.netloc:
            # The message must not have the password.
            raise InvalidValue("has an address with a user name or a password, which is not supported: leave them out")
    except ValueError:
        # The text of the error may have a password.
        raise InvalidValue("has an address that can't be read") from None
    if parts.scheme == "file" and parts.path and not parts.netloc:
        return text
    if parts.scheme == "https" and host:
        return text
    if parts.scheme == "http" and host in _LOOPBACK:
        return text
    raise InvalidValue(f"has {text!r}: give https://HOST/PATH or file:///PATH; http only for this machine")


def _parse_fingerprints(raw: Plain) -> tuple[str, ...]:
    if not isinstance(raw, list) or not 0 < len(raw) <= AUTHORITIES_MAX:
        raise InvalidValue(f"is not a list of 1 to {AUTHORITIES_MAX} fingerprints")
    return tuple(_parse_fingerprint(each) for each in raw)


def _parse_fingerprint(raw: Plain) -> str:
    # As `openssl x509 -fingerprint -sha256` prints it, or without colons.
    text = raw.replace(":", "").lower() if isinstance(raw, str) else ""
    if not _FINGERPRINT.fullmatch(text):
        raise InvalidValue(f"has {raw!r}: give 64 hexadecimal digits of `openssl x509 -fingerprint -sha256 -in FILE`")
    return text


def _parse_files(raw: Plain, folder: Path) -> tuple[Pem, ...]:
    if not isinstance(raw, list) or not 0 < len(raw) <= AUTHORITIES_MAX:
        raise InvalidValue(f"is not a list of 1 to {AUTHORITIES_MAX} files")
    return tuple(Pem(folder / parse_file_name(each)) for each in raw)


def _parse_permissions(raw: Plain) -> tuple[tuple[str, str], ...]:
    if not isinstance(raw, list) or len(raw) > GRANTS_MAX:
        raise InvalidValue(f"is not a list of at most {GRANTS_MAX} permissions")
    found: list[tuple[str, str]] = []
    for each in raw:
        namespace, _, role = each.partition(":") if isinstance(each, str) else ("", "", "")
        if not namespace or role not in ("worker", "read", "reader", "write", "writer", "admin"):
            raise InvalidValue(f"has {each!r}: write NAMESPACE:ROLE with worker, read, write or admin")
        found.append((namespace, role))
    return tuple(found)

"""Sections `global`, `internode` and `insecure` of the static configuration: who may call, and by which proof."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fairlead.settings.dynamic.kinds import Bool, Plain
from fairlead.settings.problem import InvalidValue
from fairlead.settings.static.authorization import AuthorizationConfig, read_authorization
from fairlead.settings.static.section import Section
from fairlead.settings.static.store import parse_file_name
from fairlead.settings.static.tls import TlsConfig, read_tls

SECRET_CHARACTERS_MIN: Final = 16
SECRET_CHARACTERS_MAX: Final = 1_024


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """Authorization and TLS of a process. `secret` is known only to the hosts of a cluster.

    `is_insecure` permits listening beyond loopback without authorization.
    """

    authorization: AuthorizationConfig = field(default_factory=AuthorizationConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    secret: str = field(default="", repr=False)
    is_insecure: bool = False
    # The file that has the secret; None if it was given in another way.
    secret_file: Path | None = field(default=None, compare=False)

    @property
    def has_host_certificates(self) -> bool:
        """Whether a host proves by its certificate that it belongs to the cluster."""
        return self.tls.internode.server.requires_client

    @property
    def guards_hosts(self) -> bool:
        """Whether calls between hosts are authenticated."""
        return bool(self.secret) or self.has_host_certificates


def read_security(root: Section, folder: Path, environment: Mapping[str, str]) -> SecurityConfig:
    """Read the sections of security from the whole file."""
    both = root.section("global")
    internode = root.section("internode")
    secret, secret_file = _read_secret(internode, folder, environment)
    config = SecurityConfig(
        authorization=read_authorization(both.section("authorization"), folder),
        tls=read_tls(both.section("tls"), folder),
        secret=secret,
        is_insecure=root.value("insecure", Bool().parse, default=False),
        secret_file=secret_file,
    )
    both.close()
    internode.close()
    return config


def _read_secret(internode: Section, folder: Path, environment: Mapping[str, str]) -> tuple[str, Path | None]:
    files: list[Path] = []
    ways = internode.given("secretFile", "secretEnv")
    if len(ways) > 1:
        internode.complain_of(ways[1], f" is given beside {ways[0]}: keep one")

    def from_environment(raw: Plain) -> str:
        if not isinstance(raw, str) or not raw:
            raise InvalidValue("is not the name of an environment variable")
        return check_secret(environment.get(raw, ""))

    def from_file(raw: Plain) -> str:
        files.append(folder / parse_file_name(raw))
        return read_secret_file(files[0])

    secret = internode.value("secretFile", from_file, "") or internode.value("secretEnv", from_environment, "")
    return secret, files[0] if files else None


def read_secret_file(file: Path) -> str:
    """Read a secret from a file; raises `InvalidValue`."""
    try:
        with file.open(encoding="ascii") as opened:
            return check_secret(opened.read(SECRET_CHARACTERS_MAX + 2).strip())
    except (OSError, UnicodeDecodeError) as refused:
        reason = refused.strerror if isinstance(refused, OSError) else "it is not ASCII text"
        raise InvalidValue(f"can't be read: {reason}") from refused


def check_secret(text: str) -> str:
    """Return a secret that can be sent as a header; raises `InvalidValue` for any other text."""
    is_printable = text.isascii() and text.isprintable() and " " not in text
    if not SECRET_CHARACTERS_MIN <= len(text) <= SECRET_CHARACTERS_MAX or not is_printable:
        raise InvalidValue(
            f"has no secret: give {SECRET_CHARACTERS_MIN} to {SECRET_CHARACTERS_MAX} printable ASCII characters "
            "without spaces, for example by `openssl rand -hex 32`"
        )
    return text

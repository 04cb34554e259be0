"""Section `global.tls` of the static configuration, with Temporal's keys: PEM in files, or as base64."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fairlead.settings.dynamic.kinds import Bool, Duration, Plain
from fairlead.settings.problem import InvalidValue
from fairlead.settings.static.section import Section
from fairlead.settings.static.store import parse_file_name

FILES_MAX: Final = 100
DATA_CHARACTERS_MAX: Final = 1 << 20
NAME_CHARACTERS_MAX: Final = 253
_DAY_S: Final = 86_400.0
# Defaults in seconds: between two reads of the files; before the expiry of a certificate, for warnings and for errors;
# between two checks of the expiry.
REFRESH_S: Final = 60.0
WARNING_S: Final = 14 * _DAY_S
ERROR_S: Final = 2 * _DAY_S
CHECK_S: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class Pem:
    """PEM text: in a file, which is read again when it changes, or in the configuration itself."""

    file: Path | None = None
    data: bytes = field(default=b"", repr=False)

    @property
    def shown(self) -> str:
        """Where the text is, for messages and labels."""
        return "in the configuration" if self.file is None else str(self.file)


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The server side: a certificate with its key, and the authorities of clients, which may be required."""

    certificate: Pem | None = None
    key: Pem | None = None
    client_authorities: tuple[Pem, ...] = ()
    requires_client: bool = False

    @property
    def is_on(self) -> bool:
        """Whether connections are encrypted."""
        return self.key is not None


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The client side: the authorities of servers, and the name that their certificates must have."""

    server_name: str = ""
    verifies_host: bool = True
    authorities: tuple[Pem, ...] = ()
    is_forced: bool = False

    @property
    def is_on(self) -> bool:
        """Whether connections are encrypted."""
        return bool(self.authorities) or self.is_forced


@dataclass(frozen=True, slots=True)
class TlsGroup:
    """Both sides of one kind of connection; `overrides` are certificates by the host name that a client asks for."""

    server: ServerTls = field(default_factory=ServerTls)
    client: ClientTls = field(default_factory=ClientTls)
    overrides: Mapping[str, ServerTls] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Validated configuration of TLS. `remotes` are by HOST:PORT, HOST or *.DOMAIN of a remote cluster.

    From `warning_s` before the expiry of a certificate on, a warning is logged every `check_s`; from `error_s` on, an
    error. Changed files are read again every `refresh_s`. 0 switches each of them off.
    """

    internode: TlsGroup = field(default_factory=TlsGroup)
    frontend: TlsGroup = field(default_factory=TlsGroup)
    remotes: Mapping[str, TlsGroup] = field(default_factory=dict)
    refresh_s: float = REFRESH_S
    warning_s: float = WARNING_S
    error_s: float = ERROR_S
    check_s: float = CHECK_S


def read_tls(section: Section, folder: Path) -> TlsConfig:
    """Read the section `tls`; file names are relative to `folder`."""
    checks = section.section("expirationChecks")
    remotes = section.section("remoteClusters")
    # Accepted, without effect: Temporal's own workers connect with it, and this server has no such workers.
    worker = section.section("systemWorker")
    _read_server(worker, folder, is_worker=True)
    _read_client(worker.section("client"), folder)
    span = Duration(0.0, 3_650 * _DAY_S).parse
    config = TlsConfig(
        internode=_read_group(section.section("internode"), folder),
        frontend=_read_group(section.section("frontend"), folder, has_overrides=True),
        remotes={name.lower(): _read_group(group, folder) for name, group in remotes.sections()},
        refresh_s=section.value("refreshInterval", span, REFRESH_S),
        warning_s=checks.value("warningWindow", span, WARNING_S),
        error_s=checks.value("errorWindow", span, ERROR_S),
        check_s=checks.value("checkInterval", span, CHECK_S),
    )
    for each in (checks, remotes, worker, section):
        each.close()
    return config


def read_server_tls(section: Section, folder: Path) -> ServerTls:
    """Read the keys of a server side alone, as in `metrics.tls`."""
    found = _read_server(section, folder)
    section.close()
    return found


def _read_group(section: Section, folder: Path, *, has_overrides: bool = False) -> TlsGroup:
    overrides: dict[str, ServerTls] = {}
    server, client = section.section("server"), section.section("client")
    group = TlsGroup(_read_server(server, folder), _read_client(client, folder), overrides)
    server.close()
    if has_overrides:
        below = section.section("hostOverrides")
        for name, override in below.sections():
            found = overrides[name.lower()] = _read_server(override, folder)
            if not found.is_on:
                below.complain_of(name, " has no keyFile or keyData: give the certificate of this host name")
            override.close()
        below.close()
        if overrides and not group.server.is_on:
            section.complain_of("hostOverrides", " has no effect without server.keyFile or server.keyData")
    section.close()
    return group


def _read_server(section: Section, folder: Path, *, is_worker: bool = False) -> ServerTls:
    certificate = _read_pem(section, "certFile", "certData", folder)
    key = _read_pem(section, "keyFile", "keyData", folder)
    if (certificate is None) is not (key is None):
        section.complain_here("has a certificate or a key without the other: give both")
    if is_worker:
        return ServerTls(certificate, key)
    found = ServerTls(
        certificate,
        key,
        _read_pems(section, "clientCaFiles", "clientCaData", folder),
        section.value("requireClientAuth", Bool().parse, default=False),
    )
    if found.requires_client and not found.client_authorities:
        section.complain_of("requireClientAuth", " is true without clientCaFiles or clientCaData: give the authorities")
    if (found.requires_client or found.client_authorities) and not found.is_on:
        section.complain_here("has authorities of clients, but no certificate and key of its own: give both")
    return found


def _read_client(section: Section, folder: Path) -> ClientTls:
    found = ClientTls(
        section.value("serverName", _parse_name, ""),
        not section.value("disableHostVerification", Bool().parse, default=False),
        _read_pems(section, "rootCaFiles", "rootCaData", folder),
        section.value("forceTLS", Bool().parse, default=False),
    )
    section.close()
    return found


def _read_pem(section: Section, file_key: str, data_key: str, folder: Path) -> Pem | None:
    if len(section.given(file_key, data_key)) > 1:
        section.complain_of(data_key, f" is given beside {file_key}: keep one")
    name = section.value(file_key, _parse_optional_file, "")
    data = section.value(data_key, _parse_data, b"", is_secret=True)
    if name:
        return Pem(folder / name)
    return Pem(None, data) if data else None


def _read_pems(section: Section, files_key: str, data_key: str, folder: Path) -> tuple[Pem, ...]:
    if len(section.given(files_key, data_key)) > 1:
        section.complain_of(data_key, f" is given beside {files_key}: keep one")

    def parse_files(raw: Plain) -> tuple[Pem, ...]:
        return tuple(Pem(folder / parse_file_name(each)) for each in _listed(raw) if each != "")

    def parse_all_data(raw: Plain) -> tuple[Pem, ...]:
        return tuple(Pem(None, _parse_data(each)) for each in _listed(raw) if each != "")

    return section.value(files_key, parse_files, ()) or section.value(data_key, parse_all_data, (), is_secret=True)


def _listed(raw: Plain) -> list[Plain]:
    if not isinstance(raw, list) or len(raw) > FILES_MAX:
        raise InvalidValue(f"is not a list of at most {FILES_MAX} entries")
    return raw


def _parse_optional_file(raw: Plain) -> str:
    return "" if raw == "" else parse_file_name(raw)


def _parse_data(raw: Plain) -> bytes:
    if raw == "":
        return b""
    if not isinstance(raw, str) or len(raw) > DATA_CHARACTERS_MAX:
        raise InvalidValue("is not base64 of PEM")
    try:
        return base64.b64decode(raw, validate=True)
    except binascii.Error as wrong:
        raise InvalidValue(f"is not base64 of PEM: {wrong}") from wrong


def _parse_name(raw: Plain) -> str:
    if not isinstance(raw, str) or len(raw) > NAME_CHARACTERS_MAX:
        raise InvalidValue("is not a host name")
    return raw

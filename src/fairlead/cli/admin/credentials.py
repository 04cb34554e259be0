"""Options that authenticate the caller, and the credentials that they make."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from fairlead.core.errors import FixRequest
from fairlead.rpc.hosts.credentials import AUTHORIZATION_HEADER, SECRET_HEADER, Credentials
from fairlead.settings import InvalidValue
from fairlead.settings.static.security import read_secret_file

C = TypeVar("C", bound=Callable[..., Any])

_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
# Maximum number of characters of an API key or token. Servers refuse longer headers.
API_KEY_CHARACTERS_MAX = 16_384


class BadSecret(FixRequest):
    """The file of --secret-file has no secret, or that of --api-key-file no key."""


_SECRET_FILE = click.option(
    "--secret-file",
    envvar="FAIRLEAD_SECRET_FILE",
    type=_FILE,
    metavar="FILE",
    help="The file of internode.secretFile, on a host of the cluster; or set FAIRLEAD_SECRET_FILE.",
)


def credential_options(command: C) -> C:
    """Add the options of an administrator to a command or group."""
    return client_options(_SECRET_FILE(command))


def client_options(command: C) -> C:
    """Add the options that any client of a server has to a command or group."""
    for add in reversed(
        (
            click.option(
                "--api-key",
                envvar="FAIRLEAD_API_KEY",
                metavar="KEY",
                help="An API key, or a token; better set FAIRLEAD_API_KEY: other users may see a command line.",
            ),
            click.option(
                "--api-key-file",
                envvar="FAIRLEAD_API_KEY_FILE",
                type=_FILE,
                metavar="FILE",
                help="A file with the API key or token; or set FAIRLEAD_API_KEY_FILE.",
            ),
            click.option("--tls", "is_tls", is_flag=True, help="Use TLS; the other --tls options imply it."),
            click.option(
                "--tls-ca-path",
                envvar="FAIRLEAD_TLS_CA_PATH",
                type=_FILE,
                metavar="FILE",
                help="Authorities that servers' certificates must be from. [default: those of this machine]",
            ),
            click.option(
                "--tls-cert-path", envvar="FAIRLEAD_TLS_CERT_PATH", type=_FILE, metavar="FILE", help="Own certificate."
            ),
            click.option("--tls-key-path", envvar="FAIRLEAD_TLS_KEY_PATH", type=_FILE, metavar="FILE", help="Own key."),
            click.option(
                "--tls-server-name",
                envvar="FAIRLEAD_TLS_SERVER_NAME",
                metavar="NAME",
                help="Name that servers' certificates must have. [default: that of the address]",
            ),
        )
    ):
        command = add(command)
    return command


def api_key_of(api_key: str | None, api_key_file: Path | None) -> str:
    """Return the API key of the options, empty without one."""
    if api_key and api_key_file is not None:
        raise click.UsageError("--api-key (FAIRLEAD_API_KEY) and --api-key-file exclude each other: give one of them")
    if api_key_file is None:
        return api_key or ""
    try:
        with api_key_file.open(encoding="ascii") as opened:
            key = opened.read(API_KEY_CHARACTERS_MAX + 2).strip()
    except (OSError, UnicodeDecodeError) as refused:
        reason = refused.strerror if isinstance(refused, OSError) else "it is not ASCII text"
        raise BadSecret(f"--api-key-file {api_key_file} can't be read: {reason}") from refused
    if not 0 < len(key) <= API_KEY_CHARACTERS_MAX or not key.isprintable() or " " in key:
        raise BadSecret(f"--api-key-file {api_key_file} has no key: it must be one line without spaces")
    return key


def credentials_of(
    *,
    api_key: str | None,
    api_key_file: Path | None = None,
    secret_file: Path | None = None,
    is_tls: bool,
    tls_ca_path: Path | None,
    tls_cert_path: Path | None,
    tls_key_path: Path | None,
    tls_server_name: str | None,
) -> Credentials:
    """Make credentials from the values of the options."""
    headers: list[tuple[str, str]] = []
    if key := api_key_of(api_key, api_key_file):
        headers.append((AUTHORIZATION_HEADER, f"Bearer {key}"))
    elif secret_file is not None:
        try:
            headers.append((SECRET_HEADER, read_secret_file(secret_file)))
        except InvalidValue as wrong:
            raise BadSecret(f"--secret-file {secret_file} {wrong}") from wrong
    if (tls_cert_path is None) is not (tls_key_path is None):
        raise click.UsageError("--tls-cert-path and --tls-key-path belong together: give both")
    if not (is_tls or tls_ca_path or tls_cert_path or tls_server_name):
        return Credentials(tuple(headers))
    # Imported late: most commands don't use TLS.
    from fairlead.rpc.tls.client_files import client_side  # noqa: PLC0415

    tls = client_side(
        authorities=tls_ca_path, certificate=tls_cert_path, key=tls_key_path, server_name=tls_server_name or ""
    )
    return Credentials(tuple(headers), tls)

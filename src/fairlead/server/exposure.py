"""Refuses to listen beyond loopback without authorization, unless the operator has said that this is intended."""

import ipaddress
import socket

from fairlead.core.errors import FixRequest
from fairlead.settings.static.config import Address, Role, StaticConfig
from fairlead.telemetry import get_log

_log = get_log("server")


class Careless(FixRequest):
    """A server without authorization listens where others can reach it: anybody could do everything."""


def check_exposure(config: StaticConfig) -> None:
    """Raise `Careless` for an unprotected address beyond loopback; with `insecure`, log a warning instead.

    Also warn of addresses at which API keys and tokens arrive in clear text.
    """
    _warn_of_clear_text(config)
    open_addresses = {key: address for key, address in _unprotected(config).items() if not _is_loopback(address)}
    if not open_addresses:
        return
    shown = _shown(config, open_addresses)
    if not config.security.is_insecure:
        raise Careless(
            f"{shown}: other machines may reach it, and every caller may do everything, since there is no "
            "authorization. Configure it (docs/security.md), listen at 127.0.0.1, or, if a network that you trust "
            "protects it, give --insecure (insecure: true in the file)"
        )
    _log.warning("insecure: other machines may reach this server, and there is no authorization", addresses=shown)


def _warn_of_clear_text(config: StaticConfig) -> None:
    security = config.security
    if not security.authorization.is_on or security.tls.frontend.server.is_on or Role.FRONTEND not in config.roles:
        return
    found = {key: address for key, address in _of_callers(config).items() if not _is_loopback(address)}
    if found:
        _log.warning(
            "callers from other machines send API keys and tokens without TLS: configure global.tls.frontend, unless a "
            "proxy on this machine or a network that you trust protects them",
            addresses=_shown(config, found),
        )


def _shown(config: StaticConfig, addresses: dict[str, Address]) -> str:
    """The addresses with their keys, as text. A command-line flag that sets several addresses is named once."""
    found: dict[str, str] = {}
    for key, address in addresses.items():
        flag = config.flags.get(f"{key}.host")
        found.setdefault(key if flag is None else address.host, f"{flag or key} {address}")
    return ", ".join(found.values())


def _unprotected(config: StaticConfig) -> dict[str, Address]:
    """The addresses of a process at which callers are not authenticated."""
    security = config.security
    found: dict[str, Address] = {}
    if Role.FRONTEND in config.roles and not security.authorization.is_on:
        found |= _of_callers(config)
    if config.roles != {Role.FRONTEND} and not (security.authorization.is_on or security.guards_hosts):
        found["listen"] = config.listen
    return found


def _of_callers(config: StaticConfig) -> dict[str, Address]:
    """The addresses of the frontend, for SDKs, the HTTP API and the web page."""
    found = {"frontend.listen": config.frontend_listen}
    if config.http is not None:
        found["frontend.http.listen"] = config.http.listen
    if config.ui is not None:
        found["ui.listen"] = Address(config.ui.host, config.ui.port)
    return found


def _is_loopback(address: Address) -> bool:
    """Whether only this machine reaches an address; a name is looked up."""
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError:
        # The server can't listen there either, and reports it.
        return True
    return all(ipaddress.ip_address(place[0]).is_loopback for *_, place in found)

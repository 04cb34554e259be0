"""Refuses requests that a web page of another site makes in a user's browser.

A page of another site can send requests to a server on the user's machine, with a foreign `Origin`, or with a foreign
`Host`, if it lets its own host name point to the machine (DNS rebinding).
"""

import ipaddress
import re
from collections.abc import Callable, Sequence

from fairlead.http.message import HttpFault, Request

SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))

_LOCAL_NAMES = ("localhost", ".localhost")
_SAME = frozenset(("same-origin", "none"))


class Guard:
    """Checks the `Host` and the `Origin` of every request."""

    def __init__(self, *, is_loopback: bool, allowed_hosts: Callable[[], Sequence[str]] = tuple) -> None:
        """`allowed_hosts` returns patterns of hosts, in which `*` stands for any characters.

        Without a pattern, a server that listens only on loopback accepts IP addresses and `localhost`; another server
        accepts any host, since it can't know its names.
        """
        self._is_loopback = is_loopback
        self._allowed_hosts = allowed_hosts
        self._patterns: tuple[str, ...] = ()
        self._allowed: re.Pattern[str] | None = None

    def check(self, request: Request) -> None:
        """Raise `HttpFault` with status 403 if the request comes from another site."""
        host = request.headers.get("host", "")
        if not self._is_allowed(host):
            raise HttpFault(403, "Host not allowed")
        if request.method in SAFE_METHODS:
            return
        origin = request.headers.get("origin")
        if origin is not None and _host_of(origin) != host.lower():
            raise HttpFault(403, f"requests from pages of another origin ({origin!r}) are not allowed")
        # Only browsers send it, also for pages that hide their origin.
        if request.headers.get("sec-fetch-site", "none") not in _SAME:
            raise HttpFault(403, "requests from pages of another site are not allowed")

    def _is_allowed(self, host: str) -> bool:
        patterns = tuple(self._allowed_hosts())
        if patterns:
            return self._matches(patterns, host)
        return not self._is_loopback or is_local_name(host)

    def _matches(self, patterns: tuple[str, ...], host: str) -> bool:
        if patterns != self._patterns or self._allowed is None:
            text = "|".join(".*".join(re.escape(part) for part in one.split("*")) for one in patterns)
            self._patterns, self._allowed = patterns, re.compile(text, re.IGNORECASE)
        return self._allowed.fullmatch(host) is not None


def is_local_name(host: str) -> bool:
    """Whether a `Host` header is an IP address or `localhost`, which no other site's name can be."""
    name = _without_port(host).lower()
    if name == _LOCAL_NAMES[0] or name.endswith(_LOCAL_NAMES[1]):
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached only from the same machine."""
    if host.lower() == _LOCAL_NAMES[0]:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return name if name and port.isdecimal() else host


def _host_of(origin: str) -> str:
    return origin.partition("://")[2].lower()

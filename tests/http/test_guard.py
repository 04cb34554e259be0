"""Requests of other sites' pages are refused."""

import pytest

from fairlead.http import HttpFault, Request
from fairlead.http.guard import Guard, is_local_name, is_loopback


def request(method: str = "GET", host: str = "localhost:7243", **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(method, "/", {"host": host, **named}, b"", peer="127.0.0.1")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "a.localhost:1", "127.0.0.1:7243", "[::1]:7243", "10.0.0.1"]
)
def test_local_names_are_accepted_on_loopback(host: str) -> None:
    assert is_local_name(host)
    Guard(is_loopback=True).check(request(host=host))


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example:80", "", "127.0.0.1.evil.example", "evil:7243"]
)
def test_other_names_are_refused_on_loopback(host: str) -> None:
    """A site may let its own name point to 127.0.0.1 after its page is loaded (DNS rebinding)."""
    with pytest.raises(HttpFault, match="Host not allowed") as refused:
        Guard(is_loopback=True).check(request(host=host))
    assert refused.value.status == 403


def test_a_server_on_other_addresses_can_not_know_its_names() -> None:
    Guard(is_loopback=False).check(request(host="fairlead.example.com"))


def test_allowed_hosts_are_patterns_that_may_change() -> None:
    allowed = ["*.example.com", "exact:7243"]
    guard = Guard(is_loopback=True, allowed_hosts=lambda: allowed)
    guard.check(request(host="a.example.com"))
    guard.check(request(host="EXACT:7243"))
    for host in ("example.com", "a.example.com:80", "a.example.comx", "localhost"):
        with pytest.raises(HttpFault):
            guard.check(request(host=host))
    allowed[:] = ["*"]
    guard.check(request(host="anything"))


def test_posts_of_other_origins_are_refused() -> None:
    guard = Guard(is_loopback=True)
    guard.check(request("POST"))
    guard.check(request("POST", origin="http://localhost:7243", sec_fetch_site="same-origin"))
    guard.check(request("GET", origin="http://evil.example", sec_fetch_site="cross-site"))
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:3000"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ):
        with pytest.raises(HttpFault, match="not allowed"):
            guard.check(request("POST", **headers))


def test_loopback_addresses_are_known() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "x"))  # noqa: S104 - not bound

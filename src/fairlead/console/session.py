"""The viewer's API key or token, in a cookie that scripts can't read and that ends with the browser."""

import base64
import binascii
from typing import Final

from fairlead.http import Request

COOKIE: Final = "fairlead_session"
NOTICE_COOKIE: Final = "fairlead_notice"
# Characters of a key or token, and of a notice; browsers keep cookies up to 4096 bytes.
TOKEN_CHARACTERS_MAX: Final = 2_900
NOTICE_CHARACTERS_MAX: Final = 600
# Seconds for which a notice waits for the next page.
NOTICE_S: Final = 30

_BEARER: Final = "Bearer "


def authorized(request: Request, header: str) -> Request:
    """The request with the viewer's key in the header of the token, unless it has such a header of its own."""
    if header in request.headers:
        return request
    token = _read(request, COOKIE)
    return with_token(request, header, token) if token else request


def with_token(request: Request, header: str, token: str) -> Request:
    """The request with a key or token in the header."""
    target = f"{request.path}?{request.query}" if request.query else request.path
    headers = {**request.headers, header: _BEARER + token.removeprefix(_BEARER)}
    return Request(request.method, target, headers, request.body, peer=request.peer, is_secure=request.is_secure)


def session_cookie(request: Request, token: str, *, path: str) -> tuple[str, str]:
    """Set-Cookie header that stores a key or token in the browser; an empty token ends the session."""
    return _cookie(request, COOKIE, token.removeprefix(_BEARER).strip(), path=path, age_s=None if token else 0)


def notice_cookie(request: Request, notice: str, *, path: str) -> tuple[str, str]:
    """Set-Cookie header that stores a sentence for the next page; an empty sentence deletes the cookie."""
    text = notice[:NOTICE_CHARACTERS_MAX]
    return _cookie(request, NOTICE_COOKIE, text, path=path, age_s=NOTICE_S if text else 0)


def notice_of(request: Request) -> str:
    """The sentence that the last action left for this page; empty without one."""
    return _read(request, NOTICE_COOKIE)


def _cookie(request: Request, name: str, text: str, *, path: str, age_s: int | None) -> tuple[str, str]:
    value = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    age = "" if age_s is None else f"; Max-Age={age_s}"
    secure = "; Secure" if request.is_secure else ""
    return "Set-Cookie", f"{name}={value}; Path={path}{age}; HttpOnly; SameSite=Strict{secure}"


def _read(request: Request, name: str) -> str:
    value = request.cookies.get(name, "")
    try:
        text = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).decode()
    except (binascii.Error, ValueError):
        return ""
    return text if text.isprintable() else ""

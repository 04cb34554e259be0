"""Protection of the web page against requests that another site makes in its user's browser.

The page gets a random token as a cookie, and sends it back with every change: as a header, or as a field of a form.
Another site's page can't read the cookie, so it can't send the token. Programs that send an Authorization header need
no token: a browser does not send one by itself.
"""

import hmac
import re
import secrets
from types import MappingProxyType
from urllib.parse import parse_qsl

from fairlead.http import Request, Response
from fairlead.http.guard import SAFE_METHODS

COOKIE = "_csrf"
HEADER = "x-csrf-token"
FIELD = "_csrf"
FORM = "application/x-www-form-urlencoded"
# Number of fields of a form.
FIELDS_MAX = 100
# Seconds for which a browser keeps the token.
AGE_S = 86_400

_TOKEN = re.compile(r"[0-9a-f]{32}")


def refusal(request: Request) -> Response | None:
    """The error of a change without its token, in the words of Temporal's page; None if the request is right."""
    if request.method in SAFE_METHODS or "authorization" in request.headers:
        return None
    given = request.headers.get(HEADER, "") or form(request).get(FIELD, "")
    if not given:
        return _error(400, "missing csrf token in request header")
    expected = request.cookies.get(COOKIE, "")
    if not _TOKEN.fullmatch(expected) or not hmac.compare_digest(given.encode(), expected.encode()):
        return _error(403, "invalid csrf token")
    return None


def form(request: Request) -> dict[str, str]:
    """The fields of a submitted form; empty if the body has another type or too many fields."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        return {}
    try:
        return dict(parse_qsl(request.body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX))
    except ValueError:
        return {}


def token(request: Request) -> str:
    """The browser's token, or a new one; further calls for the same request return the same one."""
    found = request.cookies.get(COOKIE, "")
    if not _TOKEN.fullmatch(found):
        found = secrets.token_hex(16)
        request.cookies = MappingProxyType({**request.cookies, COOKIE: found})
    return found


def cookie(request: Request) -> tuple[str, str]:
    """The header that sets the token: the browser's own, or a new one."""
    secure = "; Secure" if request.is_secure else ""
    return "Set-Cookie", f"{COOKIE}={token(request)}; Path=/; Max-Age={AGE_S}; SameSite=Strict{secure}"


def _error(status: int, message: str) -> Response:
    return Response(status, f'{{"message":"{message}"}}\n'.encode(), "application/json")

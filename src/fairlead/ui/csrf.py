"""Protection of the web page against requests that another site makes in its user's browser.

The page gets a random token as a cookie, and sends it back as a header with every change. Another site's page can't
read the cookie, so it can't send the header. Programs that send an Authorization header need no token: a browser does
not send one by itself.
"""

import hmac
import re
import secrets

from fairlead.http import Request, Response
from fairlead.http.guard import SAFE_METHODS

COOKIE = "_csrf"
HEADER = "x-csrf-token"
# Seconds for which a browser keeps the token.
AGE_S = 86_400

_TOKEN = re.compile(r"[0-9a-f]{32}")


def refusal(request: Request) -> Response | None:
    """The error of a change without its token, in the words of Temporal's page; None if the request is right."""
    if request.method in SAFE_METHODS or "authorization" in request.headers:
        return None
    given = request.headers.get(HEADER, "")
    if not given:
        return _error(400, "missing csrf token in request header")
    expected = request.cookies.get(COOKIE, "")
    if not _TOKEN.fullmatch(expected) or not hmac.compare_digest(given.encode("latin-1"), expected.encode()):
        return _error(403, "invalid csrf token")
    return None


def cookie(request: Request) -> tuple[str, str]:
    """The header that sets the token: the browser's own, or a new one."""
    token = request.cookies.get(COOKIE, "")
    if not _TOKEN.fullmatch(token):
        token = secrets.token_hex(16)
    secure = "; Secure" if request.is_secure else ""
    return "Set-Cookie", f"{COOKIE}={token}; Path=/; Max-Age={AGE_S}; SameSite=Strict{secure}"


def _error(status: int, message: str) -> Response:
    return Response(status, f'{{"message":"{message}"}}\n'.encode(), "application/json")

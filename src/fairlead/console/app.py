"""Answers the requests below /console: pages, their data, their streams, and actions."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from fairlead.authorization.claims import Claims, Denied
from fairlead.authorization.gate import NOBODY
from fairlead.authorization.methods import Access, MethodAccess, Scope
from fairlead.authorization.reasons import acting
from fairlead.authorization.roles import Role
from fairlead.console import session
from fairlead.console.backend import Backend
from fairlead.console.context import Context, Credentials
from fairlead.console.live import LiveViews, event
from fairlead.console.pages import Page, render, render_live
from fairlead.console.problems import Problem, problem_of
from fairlead.console.static_files import static_file
from fairlead.console.view import FIELD_CHARACTERS_MAX, REASON_CHARACTERS_MAX, Action, Form, Parameters, View
from fairlead.console.views import HOME, VIEWS
from fairlead.core.errors import FairleadError
from fairlead.frontend.http import HttpApi
from fairlead.http import HttpFault, Request, Response
from fairlead.rpc import RpcStatus
from fairlead.telemetry import get_log
from fairlead.ui import csrf

HTML: Final = "text/html; charset=utf-8"
JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"

# Method name under which the audit lists refused sign-ins.
SIGN_IN: Final = MethodAccess("/fairlead/console.SignIn", "console.SignIn", Scope.CLUSTER, Access.READ)

_NO_STORE: Final = ("Cache-Control", "no-store")
_BY_PATH: Final = {view.path: view for view in VIEWS}
_JSON_SUFFIX: Final = ".json"
# HTTP status of a cancelled call. Lower error statuses mean that the call was refused.
_CANCELED_STATUS: Final = 499

_log = get_log("console")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleOptions:
    """Where a browser sees the console, and its links to other places."""

    # Path below which a browser sees the web page, such as /temporal; empty for the root.
    public_path: str = ""
    codec_endpoint: str = ""
    # Whether Temporal's own pages are there.
    has_official_pages: Callable[[], bool] = lambda: False


class Console:
    """The console at one address."""

    def __init__(self, api: HttpApi, backend: Backend, options: ConsoleOptions) -> None:
        self._api = api
        self._backend = backend
        self._options = options
        self._base = f"{options.public_path}/console"
        gate = backend.gate
        self._header = "authorization" if gate is None else gate.header
        self._live = LiveViews()
        endpoint = urlsplit(options.codec_endpoint)
        codec = f" {endpoint.scheme}://{endpoint.netloc}" if endpoint.netloc else ""
        policy = (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
            f"connect-src 'self'{codec}; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        )
        self._headers = (_NO_STORE, ("Content-Security-Policy", policy))

    def end(self) -> None:
        """End the live views and the background tasks, when the server stops."""
        self._live.end()
        self._backend.stored_queues.end()

    async def handle(self, request: Request) -> Response:
        """Answer a request below /console; `UiApp` has checked its host, origin and token."""
        path = self._below(request)
        if path == "":
            return Response(308, headers=(("Location", f"{self._base}/"),))
        if path.startswith("/static/"):
            return static_file(path)
        try:
            response = await self._answer(path.strip("/"), session.authorized(request, self._header))
        except Exception as failure:  # noqa: BLE001 - the page shows it
            if not isinstance(failure, RpcStatus | FairleadError | HttpFault | msgspec.ValidationError):
                _log.error("view failed", path=path[:200], exc_info=failure)
            response = await self._failed(request, path, problem_of(failure))
        return self._guarded(response)

    async def refuse(self, request: Request, refusal: Response) -> Response:
        """Show the error for a form without its token as a page; programs get the response unchanged."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != csrf.FORM:
            return refusal
        problem = Problem(refusal.status, "This page is too old: reload it.")
        return self._guarded(await self._failed(request, self._below(request), problem))

    def _below(self, request: Request) -> str:
        return request.path[len(self._base) :] if request.path.startswith(self._base) else "/"

    def _guarded(self, response: Response) -> Response:
        own = {name for name, _ in response.headers}
        return response.with_headers(*(header for header in self._headers if header[0] not in own))

    async def _answer(self, path: str, request: Request) -> Response:
        if path == "sign-in":
            return await self._sign_in(request)
        if path == "sign-out" and request.method == "POST":
            gone = session.session_cookie(request, "", path=self._base)
            return Response(303, headers=(("Location", f"{self._base}/sign-in"), gone))
        claims = await self._claims(request)
        if claims is None and self._backend.gate is not None:
            return self._to_sign_in(path, request)
        own = "" if claims is None else _own_namespace(claims, path, request)
        if own:
            given = dict(request.parameters) if request.query else {}
            query = urlencode({**given, "namespace": own})
            return Response(303, headers=(("Location", f"{self._base}/{path}?{query}"),))
        context = Context(self._backend, self._api, request, NOBODY if claims is None else claims.principal)
        if request.method == "POST":
            view_path, _, action = path.rpartition("/")
            return await self._act(_view(view_path), action, context)
        return await self._read(path, context)

    async def _read(self, path: str, context: Context) -> Response:
        request = context.request
        if request.method not in {"GET", "HEAD"}:
            raise HttpFault(405, f"the method {request.method} is not used here")
        if path.startswith("live/"):
            return self._stream(_view(path.removeprefix("live/")), context)
        view_path, _, name = path.rpartition("/")
        if document := _documents(view_path).get(name):
            return await document(context)
        if path.endswith(_JSON_SUFFIX):
            return await self._data(_view(path.removesuffix(_JSON_SUFFIX)), context)
        view = _view(path)
        if dict(request.parameters).get("format") == "json":
            return await self._data(view, context)
        return await self._show(view, context)

    async def _show(self, view: View, context: Context) -> Response:
        parameters = _parameters(view, context.request)
        data = await view.load(context, parameters)
        page = await self._page(view, context, parameters, data)
        forgotten = session.notice_cookie(context.request, "", path=self._base)
        return Response(200, render(view.template, page, data=data), HTML, (forgotten,) if page.notice else ())

    async def _data(self, view: View, context: Context) -> Response:
        data = await view.load(context, _parameters(view, context.request))
        return Response(200, msgspec.json.encode(data), JSON)

    def _stream(self, view: View, context: Context) -> Response:
        parameters = _parameters(view, context.request)
        if not view.is_live:
            raise HttpFault(404, f"the view {view.path!r} is not live")

        async def sample() -> bytes:
            if not await self._is_known(context.request):
                return event("signed-out", "The key or token is no longer valid: sign in again.")
            fresh = Context(self._backend, self._api, context.request, context.principal, is_sample=True)
            try:
                data = await view.load(fresh, parameters)
            except (RpcStatus, FairleadError) as failure:
                return event("problem", problem_of(failure).message)
            page = await self._page(view, fresh, parameters, data, is_sample=True)
            return event("live", render_live(view.template, page, {"data": data}))

        query = urlencode(sorted(_given(parameters).items()))
        # Viewers share a sample only if no credential of any kind distinguishes them.
        key = (view.path, query, *context.identifying_headers())
        return Response(200, self._live.open(key, sample), EVENTS, (("X-Accel-Buffering", "no"),))

    async def _act(self, view: View, name: str, context: Context) -> Response:
        action = view.action(name)
        if action is None:
            raise HttpFault(404, f"there is no action {name!r} here")
        parameters = _parameters(view, context.request)
        form = _checked_form(action, csrf.form(context.request))
        await context.enforce(action.access, parameters.namespace)
        reason = form.get("reason", "")
        with acting(reason):
            said = await action.act(context, parameters, form)
        _log.info("action of the console", action=f"{view.path}/{name}", by=context.identity(), reason=reason)
        page = Page(
            base=self._base, title="", parameters=_given(parameters), path=view.path, namespace=parameters.namespace
        )
        kept = session.notice_cookie(context.request, said, path=self._base)
        return Response(303, headers=(("Location", page.here()), kept))

    async def _page(
        self, view: View, context: Context, parameters: Parameters, data: Any, *, is_sample: bool = False
    ) -> Page:
        request = context.request
        actions = {
            action.name: action
            for action in view.actions
            if action.applies(data) and await context.may(action.access, parameters.namespace)
        }
        return Page(
            base=self._base,
            title=view.title,
            parameters=_given(parameters),
            path=view.path,
            namespace=parameters.namespace,
            namespaces=[] if is_sample else await context.namespaces(),
            who=context.principal.name,
            is_guarded=self._backend.gate is not None,
            csrf="" if is_sample else csrf.token(request),
            notice="" if is_sample else session.notice_of(request),
            actions=actions,
            navigation=() if is_sample else await _navigation(context, parameters.namespace),
            is_live=view.is_live,
            official=f"{self._options.public_path}/" if self._options.has_official_pages() else "",
            codec_endpoint=self._options.codec_endpoint,
        )

    async def _failed(self, request: Request, path: str, problem: Problem) -> Response:
        if path.endswith(_JSON_SUFFIX) or "/live/" in path:
            return Response(problem.status, msgspec.json.encode({"message": problem.message}), JSON)
        given = dict(request.parameters) if request.query else {}
        namespace = given.get("namespace", "")
        context = Context(self._backend, self._api, session.authorized(request, self._header))
        page = Page(
            base=self._base,
            title=_failure_title(request, problem),
            is_failure=True,
            parameters={},
            namespace=namespace,
            csrf=csrf.token(request),
            is_guarded=self._backend.gate is not None,
            navigation=await _navigation(context, namespace or Parameters().namespace),
        )
        view_path = path.strip("/").rpartition("/")[0]
        view = _BY_PATH.get(view_path) if request.method == "POST" and view_path else None
        back = ""
        if view is not None:
            known = {name: value for name, value in given.items() if name in view.parameters.__struct_fields__}
            back = page.url(view.path, **known)
        return Response(problem.status, render("problem.html", page, problem=problem, back=back), HTML)

    async def _claims(self, request: Request) -> Claims | None:
        """The viewer's claims; None without authorization, or if the viewer must sign in first."""
        gate = self._backend.gate
        if gate is None:
            return None
        try:
            return await gate.viewer(Credentials(request.headers, request.peer))
        except Denied:
            return None

    async def _is_known(self, request: Request) -> bool:
        """Whether the viewer need not sign in first."""
        return self._backend.gate is None or await self._claims(request) is not None

    def _to_sign_in(self, path: str, request: Request) -> Response:
        if path.endswith(_JSON_SUFFIX) or path.startswith("live/") or request.method == "POST":
            return Response(401, msgspec.json.encode({"message": "sign in first"}), JSON)
        wanted = f"{path}?{request.query}" if request.query else path
        return Response(303, headers=(("Location", f"{self._base}/sign-in?next={quote(wanted)}"),))

    async def _sign_in(self, request: Request) -> Response:
        """Show the sign-in form; or, if a valid key or token was submitted, keep it in a cookie."""
        wanted = dict(request.parameters).get("next", "") if request.query else ""
        trouble = ""
        if request.method == "POST":
            token = csrf.form(request).get("token", "").strip()
            asked = session.with_token(request, self._header, token)
            is_usable = token.isascii() and token.isprintable() and len(token) <= session.TOKEN_CHARACTERS_MAX
            if token and is_usable and await self._is_known(asked):
                kept = session.session_cookie(request, token, path=self._base)
                return Response(303, headers=(("Location", f"{self._base}/{_safe(wanted)}"), kept))
            trouble = "This is not a valid API key or token: it may have ended or been revoked."
            if (gate := self._backend.gate) is not None:
                credentials = Credentials(request.headers, request.peer)
                gate.refuse(credentials, None, SIGN_IN, "", "the key or token of a sign-in is not valid")
        page = Page(
            base=self._base,
            title="Sign in",
            parameters={"next": wanted} if wanted else {},
            csrf=csrf.token(request),
            is_guarded=self._backend.gate is not None,
        )
        return Response(403 if trouble else 200, render("sign_in.html", page, trouble=trouble), HTML)


def _view(path: str) -> View:
    found = _BY_PATH.get("" if path == HOME else path)
    if found is None:
        raise HttpFault(404, f"the console has no page {path!r}")
    return found


def _own_namespace(claims: Claims, path: str, request: Request) -> str:
    """Return the namespace for a page whose address names none, if the viewer has no role in the default namespace."""
    is_page = request.method in {"GET", "HEAD"} and path in _BY_PATH
    if not is_page or (request.query and dict(request.parameters).get("namespace")):
        return ""
    if claims.role_in(Parameters().namespace) is not Role.UNDEFINED:
        return ""
    return min(claims.namespaces, default="")


async def _navigation(context: Context, namespace: str) -> tuple[View, ...]:
    """The views of the navigation that the viewer may read."""
    return tuple(
        [view for view in VIEWS if view.nav and (view.access is None or await context.may(view.access, namespace))]
    )


def _failure_title(request: Request, problem: Problem) -> str:
    if request.method != "POST":
        return "This could not be shown"
    # Higher statuses mean a server error, or a caller that did not wait: then the action may have had an effect.
    return "Nothing was done" if problem.status < _CANCELED_STATUS else "This may not have been done"


def _documents(path: str) -> Mapping[str, Callable[[Context], Awaitable[Response]]]:
    return _BY_PATH[path].documents if path in _BY_PATH else {}


def _parameters(view: View, request: Request) -> Parameters:
    """The parameters of an address; raises `msgspec.ValidationError` for a bad value. Unknown ones are ignored."""
    given = {name: value for name, value in request.parameters if value} if request.query else {}
    return msgspec.convert(given, view.parameters, strict=False)


def _given(parameters: Parameters) -> dict[str, str]:
    """The parameters that differ from their defaults, as texts of an address."""
    defaults = type(parameters)()
    return {
        name: ("true" if value is True else str(value))
        for name in parameters.__struct_fields__
        if (value := getattr(parameters, name)) != getattr(defaults, name)
    }


def _checked_form(action: Action, form: Form) -> Form:
    """Raise `HttpFault` for a form without its reason, its typed word or a required field."""
    if action.word and form.get("word", "").strip() != action.word:
        raise HttpFault(400, f"type the word {action.word!r} to confirm")
    reason = form.get("reason", "").strip()
    if action.asks_reason and not reason:
        raise HttpFault(400, "give a reason")
    if len(reason) > REASON_CHARACTERS_MAX:
        raise HttpFault(400, f"the reason has more than {REASON_CHARACTERS_MAX} characters")
    for field in action.fields:
        value = form.get(field.name, "")
        if field.is_required and not value.strip():
            raise HttpFault(400, f"{field.label!r} is missing")
        if len(value) > FIELD_CHARACTERS_MAX:
            raise HttpFault(400, f"{field.label!r} is too long")
        if field.choices and value and value not in dict(field.choices):
            raise HttpFault(400, f"{value!r} is not one of the choices of {field.label!r}")
    return {**form, "reason": " ".join(reason.split())}


def _safe(wanted: str) -> str:
    """The path below the console to open after the sign-in; a path to another place is dropped."""
    parts = urlsplit(wanted)
    is_here = not parts.scheme and not parts.netloc and parts.path.strip("/") in _BY_PATH
    return f"{parts.path.strip('/')}?{parts.query}".rstrip("?") if is_here and wanted.isprintable() else ""

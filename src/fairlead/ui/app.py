"""Answers the requests of the web page: its files, its settings, and the API below /api/v1."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

import msgspec

from fairlead.frontend.http import HttpApi
from fairlead.frontend.http.api import INDENTED
from fairlead.http import HttpFault, Request, Response
from fairlead.http.guard import Guard
from fairlead.ui import csrf
from fairlead.ui.assets import IMMUTABLE, Assets
from fairlead.ui.cache import fetched_pages, version_of
from fairlead.ui.history_file import history_file

# Version of pages in a folder without a version file. Pages from 2.23 on encode ids in paths once, as is expected here.
VERSION_DEFAULT = "2.54.1"

# A handler of the requests below one path.
Mount: TypeAlias = Callable[[Request], Awaitable[Response]]
# Turns the refusal of a change without its token into the response that the sender gets.
OnRefusal: TypeAlias = Callable[[Request, Response], Awaitable[Response]]

_API = "/api/v1/"
_HARDENED = (
    ("X-Frame-Options", "SAMEORIGIN"),
    ("Content-Security-Policy", "frame-ancestors 'self'; object-src 'none'; base-uri 'self'"),
    ("Referrer-Policy", "same-origin"),
)
_NO_PAGES = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Fairlead</title>
<h1>Fairlead is running</h1>
<p>Temporal's web pages are not here yet. If you have the <code>temporal</code> command, run
<pre>fairlead ui fetch</pre>
<p>once, and reload this page. Any folder with built pages can be given as <code>--ui-asset-path</code>.
"""


@dataclass(frozen=True, slots=True)
class UiOptions:
    """Options of the web page, with the names of Temporal's."""

    # Folder of the built pages; None: the newest ones that were fetched.
    asset_path: Path | None = None
    # Path below which a browser sees the pages, such as /temporal; empty for the root.
    public_path: str = ""
    codec_endpoint: str = ""


class UiApp:
    """The web page at one address."""

    def __init__(
        self,
        api: HttpApi,
        options: UiOptions,
        *,
        guard: Guard,
        mounts: Mapping[str, Mount] | None = None,
        on_refusal: Mapping[str, OnRefusal] | None = None,
        on_drain: Callable[[], None] = lambda: None,
    ) -> None:
        """Raises `NoPages` if a folder is given that has none.

        `mounts` are further parts of the page by the first segment of their path, such as "console": each gets the
        requests below its path, after all checks, and may answer with a stream of server-sent events. Without built
        pages, the first mount is the page. `on_refusal` has, by mount, the function that renders the response to a
        change without its token. `on_drain` is called when the server stops, so that such streams end.
        """
        self._api = api
        self._mounts = dict(mounts or {})
        self._on_refusal = dict(on_refusal or {})
        self._options = options
        self._guard = guard
        self._on_drain = on_drain
        self._assets: Assets | None = None
        self._version = VERSION_DEFAULT
        if options.asset_path is not None:
            self._open(options.asset_path)

    async def handle(self, request: Request) -> Response:
        """Answer a request."""
        self._guard.check(request)
        if not request.path.startswith("/"):
            raise HttpFault(400, f"{request.path!r} is not a path")
        path = self._below_public_path(request.path)
        if path is None:
            # Redirect a browser at the root to the pages.
            return Response(308, headers=(("Location", f"{self._options.public_path}/"),))
        refusal = csrf.refusal(request)
        response = await self._answer(path, request) if refusal is None else await self._refused(path, request, refusal)
        if path.startswith(IMMUTABLE):
            # Shared caches may keep it, so it has no cookie.
            return response.with_headers(*_HARDENED)
        return response.with_headers(*_HARDENED, csrf.cookie(request))

    def refuse(self, fault: HttpFault) -> Response:
        """Render an error of the HTTP server itself."""
        return self._api.refuse(fault)

    def drain(self) -> None:
        """End the streams of all mounts."""
        self._on_drain()

    @property
    def has_pages(self) -> bool:
        """Whether built pages of Temporal's web UI are there."""
        return self._pages() is not None

    async def _refused(self, path: str, request: Request, refusal: Response) -> Response:
        on_refusal = self._on_refusal.get(path.split("/", 2)[1])
        return refusal if on_refusal is None else await on_refusal(request, refusal)

    async def _answer(self, path: str, request: Request) -> Response:
        mount = self._mounts.get(path.split("/", 2)[1])
        if mount is not None:
            return await mount(request)
        if path == "/healthz":
            return Response(200, b'{"status":"OK"}\n', "application/json")
        if path == "/api/v1/settings":
            return Response(200, msgspec.json.encode(self._settings()), "application/json")
        if path.startswith(_API):
            return await self._answer_api(path, request)
        if request.method not in {"GET", "HEAD"}:
            return Response(405, b'{"message":"Method Not Allowed"}\n', "application/json", (("Allow", "GET, HEAD"),))
        return await self._page(path)

    async def _answer_api(self, path: str, request: Request) -> Response:
        parts = path.removeprefix(_API).split("/")
        match parts:
            case ["namespaces", namespace, "workflows", workflow_id, "run", run_id, "history.json"]:
                events = history_file(
                    self._api,
                    request,
                    namespace=unquote(namespace),
                    workflow_id=unquote(workflow_id),
                    run_id=unquote(run_id),
                )
                return Response(200, events, "application/json")
        if path != request.path:
            target = f"{path}?{request.query}" if request.query else path
            request = Request(
                request.method, target, request.headers, request.body, peer=request.peer, is_secure=request.is_secure
            )
        return await self._api.answer(request, INDENTED)

    async def _page(self, path: str) -> Response:
        assets = self._pages()
        if assets is None:
            if path == "/" and self._mounts:
                target = f"{self._options.public_path}/{next(iter(self._mounts))}/"
                return Response(302, headers=(("Location", target), ("Cache-Control", "no-store")))
            return Response(200, _NO_PAGES.encode(), "text/html; charset=utf-8", (("Cache-Control", "no-store"),))
        return await assets.file(path) or assets.index()

    def _pages(self) -> Assets | None:
        """The pages; those that are fetched while the server runs are found at the next request."""
        if self._assets is None and (found := fetched_pages()) is not None:
            self._open(found)
        return self._assets

    def _open(self, folder: Path) -> None:
        self._assets = Assets(folder, public_path=self._options.public_path)
        self._version = version_of(folder) or VERSION_DEFAULT

    def _below_public_path(self, path: str) -> str | None:
        """The path without the public path; None if the request's path is not below the public path."""
        public = self._options.public_path
        if not public:
            return path
        if path == public or path.startswith(f"{public}/"):
            return path[len(public) :] or "/"
        return None if path == "/" else path

    def _settings(self) -> dict[str, Any]:
        """Settings of the page, under the names that it reads."""
        return {
            "Auth": {"Enabled": False, "Options": None, "RedirectToProvider": False},
            "DefaultNamespace": "",
            "ShowTemporalSystemNamespace": False,
            "NavCollapsedByDefault": False,
            "FeedbackURL": "",
            # The page would send the cluster's id to Temporal's news server.
            "DisableNewsFetch": True,
            "Codec": {
                "Endpoint": self._options.codec_endpoint,
                "PassAccessToken": False,
                "IncludeCredentials": False,
                "DefaultErrorMessage": "",
                "DefaultErrorLink": "",
            },
            "Version": self._version,
            "DisableWriteActions": False,
            "WorkflowTerminateDisabled": False,
            "WorkflowCancelDisabled": False,
            "WorkflowSignalDisabled": False,
            "WorkflowUpdateDisabled": False,
            "WorkflowResetDisabled": False,
            "WorkflowPauseDisabled": False,
            "BatchActionsDisabled": False,
            "StartWorkflowDisabled": False,
            "HideWorkflowQueryErrors": False,
            "RefreshWorkflowCountsDisabled": False,
            "ActivityCommandsDisabled": False,
        }

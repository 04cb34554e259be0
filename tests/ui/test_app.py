"""The requests of the web page: files, settings, the API below /api/v1, and the protection of all of them."""

import base64
import hashlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.api.workflowservice.v1 import (
    GetSystemInfoResponse,
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
)

from fairlead.frontend import SERVICES
from fairlead.frontend.http import HttpApi
from fairlead.http import HttpFault, Request, Response
from fairlead.http.guard import Guard
from fairlead.rpc import Call, Code, RpcStatus
from fairlead.ui.app import Mount, UiApp, UiOptions
from fairlead.ui.assets import NoPages
from fairlead.ui.cache import MANIFEST, fetched_pages

SCRIPT = '{ __sveltekit = { base: "" }; import("/_app/immutable/entry/start.js") }'
INDEX = f"""<meta http-equiv="content-security-policy" content="script-src 'strict-dynamic' 'sha256-old='">
<link href="/_app/immutable/entry/start.js" rel="modulepreload">
<script>{SCRIPT}</script>"""
TOKEN = "0123456789abcdef" * 2
SIGNAL = "/api/v1/namespaces/default/workflows/w/signal/s"


class Behind:
    """Keeps the calls; histories have two pages of one event."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bytes]] = []

    async def answer(self, data: bytes, call: Call) -> bytes:
        self.calls.append((call.path.rpartition("/")[2], data))
        if not call.path.endswith("/GetWorkflowExecutionHistory"):
            is_info = call.path.endswith("/GetSystemInfo")
            return GetSystemInfoResponse(server_version="1").SerializeToString() if is_info else b""
        asked = GetWorkflowExecutionHistoryRequest.FromString(data)
        if asked.execution.run_id != "run/1":
            raise RpcStatus(Code.INVALID_ARGUMENT, "Invalid RunId.")
        page = int(asked.next_page_token or b"1")
        event = HistoryEvent(event_id=page, event_type=EventType.EVENT_TYPE_TIMER_STARTED)
        token = b"2" if page == 1 else b""
        return GetWorkflowExecutionHistoryResponse(
            history=History(events=[event]), next_page_token=token
        ).SerializeToString()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pages = tmp_path / "pages"
    (pages / "_app" / "immutable" / "entry").mkdir(parents=True)
    (pages / "index.html").write_text(INDEX)
    (pages / "favicon.ico").write_bytes(b"icon")
    (pages / "_app" / "immutable" / "entry" / "start.js").write_text("start()")
    (pages / MANIFEST).write_text('{"version": "2.99.0"}')
    (tmp_path / "secret.txt").write_text("secret")
    return pages


def app(
    folder: Path | None, behind: Behind | None = None, mounts: dict[str, Mount] | None = None, **options: Any
) -> UiApp:
    answer = (behind or Behind()).answer
    table = {f"/{api.full_name}/{method.name}": answer for api in SERVICES for method in api.methods}
    guard = Guard(is_loopback=True)
    return UiApp(HttpApi(SERVICES, table), UiOptions(asset_path=folder, **options), guard=guard, mounts=mounts)


def request(method: str, target: str, body: bytes = b"", **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(method, target, {"host": "localhost:8233", **named}, body, peer="127.0.0.1")


def header(response: Response, name: str) -> str:
    return next((value for key, value in response.headers if key == name), "")


async def content(response: Response) -> bytes:
    if isinstance(response.body, bytes):
        return response.body
    return b"".join([part async for part in response.body])


async def test_files_are_served_and_every_other_path_is_the_index_page(folder: Path) -> None:
    ui = app(folder)
    script = await ui.handle(request("GET", "/_app/immutable/entry/start.js"))
    assert (script.body, script.content_type) == (b"start()", "text/javascript")
    assert "immutable" in header(script, "Cache-Control")
    assert header(script, "Set-Cookie") == ""
    assert (await ui.handle(request("GET", "/favicon.ico"))).body == b"icon"
    for path in (
        "/",
        "/namespaces/default/workflows",
        "/index.html",
        f"/{MANIFEST}",
        "/_app/immutable/entry/missing.js",
    ):
        page = await ui.handle(request("GET", path))
        assert (page.body, page.content_type) == (INDEX.encode(), "text/html; charset=utf-8")
        assert header(page, "Cache-Control") == "no-cache"
        assert header(page, "X-Frame-Options") == "SAMEORIGIN"
        assert "frame-ancestors" in header(page, "Content-Security-Policy")
    assert (await ui.handle(request("POST", "/", x_csrf_token=TOKEN, cookie=f"_csrf={TOKEN}"))).status == 405


@pytest.mark.parametrize(
    "path", ["/../secret.txt", "/%2e%2e/secret.txt", "/_app/../../secret.txt", "//secret.txt", "/..\\secret.txt"]
)
async def test_nothing_outside_the_folder_can_be_named(folder: Path, path: str) -> None:
    assert (await app(folder).handle(request("GET", path))).body == INDEX.encode()


async def test_a_target_that_is_not_a_path_is_refused(folder: Path) -> None:
    with pytest.raises(HttpFault):
        await app(folder).handle(request("OPTIONS", "*"))


async def test_the_settings_say_what_the_page_may_do(folder: Path) -> None:
    response = await app(folder, codec_endpoint="https://codec.example").handle(request("GET", "/api/v1/settings"))
    settings = json.loads(await content(response))
    assert settings["Version"] == "2.99.0"
    assert settings["Codec"]["Endpoint"] == "https://codec.example"
    assert settings["Auth"] == {"Enabled": False, "Options": None, "RedirectToProvider": False}
    assert settings["DisableNewsFetch"]
    assert not any(value for name, value in settings.items() if name.endswith("Disabled"))


async def test_the_api_is_indented_and_without_shorthand(folder: Path) -> None:
    behind = Behind()
    response = await app(folder, behind).handle(request("GET", "/api/v1/system-info?"))
    assert (response.body, response.content_type) == (b'{\n  "serverVersion": "1"\n}', "application/json")
    missing = await app(folder, behind).handle(request("GET", "/api/v1/nowhere"))
    assert (missing.status, json.loads(await content(missing))) == (404, {"code": 5, "message": "Not Found"})
    assert (await app(folder, behind).handle(request("GET", "/system-info"))).body == INDEX.encode()
    health = await app(folder).handle(request("GET", "/healthz"))
    assert json.loads(await content(health)) == {"status": "OK"}


async def test_a_history_is_one_array_of_all_its_pages(folder: Path) -> None:
    path = "/api/v1/namespaces/default/workflows/a%2Fb/run/run%2F1/history.json"
    behind = Behind()
    events = json.loads(await content(await app(folder, behind).handle(request("GET", path))))
    assert [(event["eventId"], event["eventType"]) for event in events] == [
        ("1", "EVENT_TYPE_TIMER_STARTED"),
        ("2", "EVENT_TYPE_TIMER_STARTED"),
    ]
    assert GetWorkflowExecutionHistoryRequest.FromString(behind.calls[0][1]).execution.workflow_id == "a/b"
    wrong = await app(folder).handle(request("GET", path.replace("run%2F1", "x")))
    assert json.loads(await content(wrong)) == [{"error": "INVALID_ARGUMENT: Invalid RunId."}]


async def test_a_change_needs_the_token_of_the_cookie(folder: Path) -> None:
    behind = Behind()
    ui = app(folder, behind)
    cookie = f"other=1; _csrf={TOKEN}"
    missing = await ui.handle(request("POST", SIGNAL, b"{}", cookie=cookie))
    assert (missing.status, json.loads(await content(missing))) == (
        400,
        {"message": "missing csrf token in request header"},
    )
    for wrong in (
        {"x_csrf_token": "f" * 32, "cookie": cookie},
        {"x_csrf_token": TOKEN},
        {"x_csrf_token": "x", "cookie": "_csrf=x"},
        {"x_csrf_token": "\xff", "cookie": cookie},
    ):
        refused = await ui.handle(request("POST", SIGNAL, b"{}", **wrong))
        assert (refused.status, json.loads(await content(refused))) == (403, {"message": "invalid csrf token"})
    assert behind.calls == []
    assert (await ui.handle(request("POST", SIGNAL, b"{}", cookie=cookie, x_csrf_token=TOKEN))).status == 200
    assert (await ui.handle(request("POST", SIGNAL, b"{}", authorization="Bearer t"))).status == 200
    assert [name for name, _ in behind.calls] == ["SignalWorkflowExecution"] * 2


async def test_the_cookie_is_new_once_and_then_kept(folder: Path) -> None:
    ui = app(folder)
    first = header(await ui.handle(request("GET", "/")), "Set-Cookie")
    assert re.fullmatch(r"_csrf=[0-9a-f]{32}; Path=/; Max-Age=86400; SameSite=Strict", first)
    assert first != header(await ui.handle(request("GET", "/")), "Set-Cookie")
    kept = await ui.handle(request("GET", "/", cookie=f"_csrf={TOKEN}"))
    assert header(kept, "Set-Cookie").startswith(f"_csrf={TOKEN};")


async def test_requests_of_other_sites_are_refused(folder: Path) -> None:
    ui = app(folder)
    for refused in (
        request("GET", "/", host="evil.example"),
        request("POST", SIGNAL, b"{}", origin="http://evil.example", cookie=f"_csrf={TOKEN}", x_csrf_token=TOKEN),
    ):
        with pytest.raises(HttpFault, match="not allowed"):
            await ui.handle(refused)


async def test_below_a_public_path_the_page_finds_its_files_and_its_policy_allows_its_script(folder: Path) -> None:
    ui = app(folder, public_path="/temporal")
    root = await ui.handle(request("GET", "/"))
    assert (root.status, header(root, "Location")) == (308, "/temporal/")
    page = (await content(await ui.handle(request("GET", "/temporal/namespaces")))).decode()
    assert 'href="/temporal/_app/immutable/entry/start.js"' in page
    script = re.search("<script>(.*)</script>", page)
    assert script is not None
    assert 'base: "/temporal"' in script[1]
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"'sha256-{digest}'" in page
    assert "sha256-old" not in page
    assert (await ui.handle(request("GET", "/temporal/_app/immutable/entry/start.js"))).body == b"start()"
    assert b"serverVersion" in await content(await ui.handle(request("GET", "/temporal/api/v1/system-info?x=1")))
    assert b"serverVersion" in await content(await ui.handle(request("GET", "/api/v1/system-info")))


async def test_without_pages_a_page_says_how_to_get_them_and_shows_them_when_they_are_there(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ui = app(None)
    assert b"fairlead ui fetch" in await content(await ui.handle(request("GET", "/")))
    versions = tmp_path / "cache" / "fairlead" / "ui"
    versions.mkdir(parents=True)
    (versions / "2.100.0").mkdir()  # Not complete.
    for version in ("2.9.0", "2.10.0"):
        copied = versions / version
        copied.mkdir()
        (copied / "index.html").write_text(version)
        (copied / MANIFEST).write_text(json.dumps({"version": version}))
    assert fetched_pages() == versions / "2.10.0"
    assert (await ui.handle(request("GET", "/"))).body == b"2.10.0"


async def test_a_folder_without_pages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoPages, match=re.escape("there is no index.html in")):
        app(tmp_path)


async def test_another_part_of_the_page_is_mounted_below_its_path_behind_the_same_checks(folder: Path) -> None:
    async def events() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"

    async def console(asked: Request) -> Response:
        return Response(200, events() if asked.method == "GET" else b"done", "text/event-stream")

    ui = app(folder, mounts={"console": console})
    stream = await ui.handle(request("GET", "/console/events"))
    assert await content(stream) == b"data: 1\n\n"
    assert header(stream, "X-Frame-Options") == "SAMEORIGIN"
    assert (await ui.handle(request("POST", "/console/act"))).status == 400
    assert (await ui.handle(request("GET", "/consoles"))).body == INDEX.encode()

"""The server of the pages beside the reference's: the same requests to both, and the same responses."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path

from tests.frontend.http.client import Client, Reply
from tests.frontend.http.test_reference import serving
from tests.ports import free_port
from tests.ui.conftest import TEMPORAL

TOKEN = "0123456789abcdef" * 2
# Settings that differ on purpose: the page here never looks for news.
OWN_SETTINGS = ("DisableNewsFetch",)


def plain(reply: Reply) -> tuple[int, str, str]:
    """Status, content type without its parameters, and body."""
    kind = reply.headers.get("content-type", "").partition(";")[0]
    return reply.status, kind, reply.body.decode("utf-8", "replace").strip()


async def test_the_pages_server_answers_as_the_reference_does(pages: Path) -> None:
    """Takes some seconds: the reference server alone takes three to start."""
    reference_port, port = free_port(), free_port()
    reference = (TEMPORAL, "server", "start-dev", "--ip", "127.0.0.1", "--ui-ip", "127.0.0.1")
    ours = (sys.executable, "-m", "fairlead", "server", "start-dev", "--ui-asset-path", pages)
    entries = os.listdir(pages / "_app/immutable/entry")  # noqa: PTH208 - names are enough
    script = next(name for name in entries if name.startswith("start."))
    workflow = "/api/v1/namespaces/default/workflows"
    async with (
        serving(*reference, "--port", str(free_port()), "--ui-port", str(reference_port), until=b"Metrics"),
        serving(*ours, "--port", "0", "--ui-port", str(port), until=b"Ready"),
        Client(reference_port) as reference_client,
        Client(port) as client,
    ):
        # The reference's page server connects to its frontend only after it has begun to answer.
        async with asyncio.timeout(60):
            while (await reference_client.send("GET", f"{workflow}?pageSize=1")).status == 503:  # noqa: ASYNC110 - a process
                await asyncio.sleep(0.1)
        for method, target, body, headers in (
            ("GET", "/", None, {}),
            ("GET", "/namespaces/default/workflows/x", None, {}),
            ("GET", f"/_app/immutable/entry/{script}", None, {}),
            ("GET", "/_app/version.json", None, {}),
            ("GET", "/healthz", None, {}),
            ("GET", "/api/v1/nowhere", None, {}),
            ("GET", f"{workflow}/a%2Fb", None, {}),
            ("GET", f"{workflow}?query=%60WorkflowId%60%3D%22x%22&pageSize=10&nextPageToken=", None, {}),
            ("GET", f"{workflow}?pageSize=x", None, {}),
            ("GET", "/api/v1/namespaces/nobody", None, {}),
            ("POST", f"{workflow}/x/cancel", b"{}", {}),
            ("POST", f"{workflow}/x/cancel", b"{}", {"X_CSRF_Token": TOKEN, "Cookie": f"_csrf={'f' * 32}"}),
            ("POST", f"{workflow}/x/cancel", b"{}", {"X_CSRF_Token": TOKEN, "Cookie": f"_csrf={TOKEN}"}),
            ("POST", f"{workflow}/x/cancel", b"{}", {"Authorization": "Bearer t"}),
        ):
            expected = await reference_client.send(method, target, body, **headers)
            got = await client.send(method, target, body, **headers)
            assert plain(got) == plain(expected), (method, target, headers)
            for name in ("x-content-type-options", "x-frame-options"):
                assert got.headers[name].lower() == expected.headers[name].lower()
        expected, got = [await one.send("GET", "/api/v1/settings") for one in (reference_client, client)]
        assert re.match(r"_csrf=[0-9a-f]{32}; Path=/; .*SameSite=Strict", got.headers["set-cookie"])
        settings = [json.loads(reply.body) for reply in (expected, got)]
        for one in settings:
            for name in OWN_SETTINGS:
                del one[name]
        assert settings[0] == settings[1]

"""The console's requests without a browser: protection, sign-in, roles, errors, data."""

import json
import re
import subprocess
import sys

import pytest

from fairlead.console.views import VIEWS
from fairlead.ui import csrf
from tests.console.web import Visitor, new_key, running_console
from tests.frontend.http.client import Client

STRICT = "default-src 'none'; script-src 'self'; style-src 'self'"


async def test_the_root_leads_to_the_console_where_temporals_pages_are_not_fetched(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    async with running_console() as (_, visitor):
        root = await visitor.send("GET", "/")
        assert (root.status, root.headers["location"]) == (302, "/console/")
        assert (await visitor.send("GET", "/console")).headers["location"] == "/console/"


async def test_every_page_forbids_inline_scripts_and_styles_and_other_hosts() -> None:
    async with running_console() as (_, visitor):
        paths = [view.path for view in VIEWS]
        for path in [*paths, *(f"{path or 'home'}.json" for path in paths), "sign-in", "nowhere"]:
            page = await visitor.get(path)
            assert page.headers["content-security-policy"].startswith(STRICT), path
            assert "frame-ancestors 'none'" in page.headers["content-security-policy"], path
            assert b"<script>" not in page.body, path
            assert b" style=" not in page.body, path
            assert b" onclick=" not in page.body, path


async def test_pages_forbid_inline_scripts_and_are_not_kept() -> None:
    async with running_console() as (_, visitor):
        page = await visitor.get("")
        assert page.status == 200
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["x-content-type-options"] == "nosniff"
        assert b"<script>" not in page.body
        assert b"style=" not in page.body
        script = re.search(rb'<script src="([^"]+)"', page.body)
        assert script is not None
        file = await visitor.send("GET", script[1].decode())
        assert (file.status, file.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
        assert "immutable" in file.headers["cache-control"]


async def test_the_data_of_a_page_is_at_the_same_address() -> None:
    async with running_console() as (_, visitor):
        data = await visitor.data("home")
        assert data["attention"] == []
        assert json.loads((await visitor.get("", format="json")).body)["counts"] == []


async def test_an_unknown_page_a_bad_parameter_and_an_unknown_namespace_say_what_to_do() -> None:
    async with running_console() as (_, visitor):
        for path, status, sentence in (
            ("nowhere", 404, "the console has no page"),
            ("nowhere.json", 404, "the console has no page"),
            ("?namespace=none", 200, "Namespace none is not found"),
        ):
            reply = await visitor.get(path)
            assert reply.status == status, path
            assert sentence in reply.body.decode()


async def test_a_change_without_the_token_is_refused() -> None:
    async with running_console() as (_, visitor):
        await visitor.get("")
        kept = visitor.cookies[csrf.COOKIE]
        for given, status in (({}, 400), ({csrf.FIELD: "f" * 32}, 403)):
            visitor.cookies[csrf.COOKIE] = kept
            form = {csrf.FIELD: "", **given}
            assert (await visitor.post("sign-out", form)).status == status
        assert (await visitor.post("sign-out", {})).status == 303


async def test_a_change_from_another_site_is_refused() -> None:
    async with running_console() as (_, visitor):
        await visitor.get("")
        assert (await visitor.post("sign-out", {}, origin="http://evil.example")).status == 403
        assert (await visitor.post("sign-out", {}, sec_fetch_site="cross-site")).status == 403


async def test_with_authorization_a_viewer_signs_in_with_a_key_and_out_again() -> None:
    async with running_console(is_guarded=True) as (server, visitor):
        key = await new_key(server, "read")
        away = await visitor.get("", namespace="default")
        assert (away.status, away.headers["location"]) == (303, "/console/sign-in?next=%3Fnamespace%3Ddefault")
        assert (await visitor.get("home.json")).status == 401
        assert (await visitor.get("live/home")).status == 401
        wrong = await visitor.sign_in("fl_not-a-key")
        assert wrong.status == 403
        assert b"not a valid API key" in wrong.body
        done = await visitor.sign_in(key)
        assert (done.status, done.headers["location"]) == (303, "/console/")
        assert "HttpOnly; SameSite=Strict" in done.headers["set-cookie"]
        assert key not in done.headers["set-cookie"]
        page = await visitor.get("")
        assert page.status == 200
        assert b"someone" in page.body
        out = await visitor.post("sign-out", {})
        assert out.status == 303
        assert "Max-Age=0" in out.headers["set-cookie"]


async def test_a_viewer_signs_in_where_the_token_has_another_header() -> None:
    async with running_console(is_guarded=True, header="x-token") as (server, visitor):
        key = await new_key(server, "read")
        assert (await visitor.sign_in("fl_not-a-key")).status == 403
        assert (await visitor.sign_in(key)).status == 303
        # Calls of the API are made with the same rights as pages.
        assert (await visitor.data("home"))["counts_problem"] is None
        program = Visitor(visitor.port)
        assert (await program.send("GET", "/console/home.json", x_token=f"Bearer {key}")).status == 200
        assert (await program.send("GET", "/console/home.json", authorization=f"Bearer {key}")).status == 401


async def test_viewers_with_different_credentials_of_any_kind_share_no_live_view() -> None:
    async with running_console(is_guarded=True, header="x-token", namespaces=("default", "other")) as (server, visitor):
        everything, one = await new_key(server, "read", "temporal-system"), await new_key(server, "read")

        async def first_event(client: Client, key: str) -> bytes:
            head = (
                f"GET /console/live/home?namespace=other HTTP/1.1\r\nhost: 127.0.0.1\r\nx-token: Bearer {key}\r\n\r\n"
            )
            client.writer.write(head.encode())
            await client.reader.readuntil(b"event: live")
            return await client.reader.readuntil(b"\n\n")

        async with Client(visitor.port) as first, Client(visitor.port) as second:
            assert b"Request unauthorized." not in await first_event(first, everything)
            assert b"Request unauthorized." in await first_event(second, one)


async def test_refused_sign_ins_and_views_are_in_the_audit() -> None:
    async with running_console(is_guarded=True) as (server, visitor):
        await visitor.sign_in("fl_not-a-key")
        await visitor.sign_in(await new_key(server, "read"))
        assert (await visitor.get("settings")).status == 403
        await visitor.sign_in(await new_key(server, "admin", "temporal-system", "alice"))
        page = (await visitor.get("audit", refused="true")).body.decode()
        assert "fairlead/console.SignIn" in page
        assert "fairlead/matching.Describe" in page
        assert "not-a-key" not in page


async def test_a_sign_in_leads_only_to_pages_of_the_console() -> None:
    async with running_console(is_guarded=True) as (server, visitor):
        key = await new_key(server, "read")
        await visitor.get("sign-in")
        for wanted, location in (
            ("%3Fnamespace%3Ddefault", "/console/?namespace=default"),
            ("//evil.example/", "/console/"),
            ("https://evil.example/", "/console/"),
        ):
            done = await visitor.post(f"sign-in?next={wanted}", {"token": key})
            assert done.headers["location"] == location


async def test_a_role_in_one_namespace_shows_no_curves_of_the_host_and_no_other_namespace() -> None:
    async with running_console(is_guarded=True, namespaces=("default", "other")) as (server, visitor):
        await visitor.sign_in(await new_key(server, "read"))
        assert (await visitor.data("home"))["curves"] == []
        other = await visitor.data("home", namespace="other")
        assert other["counts_problem"]["message"] == "Request unauthorized."
        assert other["queues_problem"]["status"] == 403
        await visitor.sign_in(await new_key(server, "read", "temporal-system"))
        assert (await visitor.data("home", namespace="other"))["curves"] != []


async def test_a_viewer_without_a_role_in_default_lands_in_the_own_namespace() -> None:
    async with running_console(is_guarded=True, namespaces=("default", "other")) as (server, visitor):
        done = await visitor.sign_in(await new_key(server, "read", "other"))
        assert done.headers["location"] == "/console/"
        for path, own in (("", "?namespace=other"), ("workflow?id=a%26b", "workflow?id=a%26b&namespace=other")):
            led = await visitor.get(path)
            assert (led.status, led.headers["location"]) == (303, f"/console/{own}")
        assert (await visitor.get("", namespace="other")).status == 200
        # A namespace that the address names stays.
        assert (await visitor.get("", namespace="default")).status == 200


async def test_the_navigation_has_only_views_that_the_viewer_may_read() -> None:
    async def shown(key: str) -> set[str]:
        await visitor.sign_in(key)
        page = (await visitor.get("", namespace="default")).body.decode()
        return set(re.findall(r">([^<]+)</a></li>", page[page.index("<nav") : page.index("</nav>")]))

    async with running_console(is_guarded=True) as (server, visitor):
        of_namespace = {"Overview", "Workflows", "Task queues", "Schedules", "Workers"}
        assert await shown(await new_key(server, "read")) == of_namespace
        reader = await shown(await new_key(server, "read", "temporal-system"))
        assert reader > of_namespace
        admin = await shown(await new_key(server, "admin", "temporal-system"))
        assert admin == {view.nav for view in VIEWS if view.nav}
        assert {"API keys", "Audit"} <= admin - reader


def test_the_start_of_a_server_loads_neither_templates_nor_pages() -> None:
    program = "import sys, fairlead.server.workflows; print([name for name in sys.modules])"
    command = [sys.executable, "-c", program]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - ours
    assert "'fairlead.console.sampler'" in loaded
    assert "'jinja2'" not in loaded
    assert "'fairlead.console.app'" not in loaded

"""The data and actions of the views for operators, without a browser."""

import re
from pathlib import Path

import pytest

from tests.console.web import new_key, running_console

SYSTEM_ONLY = ("report", "clusters", "ring", "settings", "keys", "audit")


async def test_settings_show_their_source_and_all_of_them_on_request() -> None:
    async with running_console() as (_, visitor):
        assert (await visitor.data("settings"))["grids"][0]["rows"] == []
        rows = (await visitor.data("settings", all="true", search="partitionUpscaleRPS"))["grids"][0]["rows"]
        assert [row[0]["text"] for row in rows] == ["matching.partitionUpscaleRPS"]
        assert rows[0][3]["text"] == "default"


async def test_a_setting_that_is_set_shows_its_value_and_the_line_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "dynamic.yaml"
    file.write_text("matching.partitionUpscaleRPS:\n  - value: 123\nfrontend.namespaceRPS: [{value: 77}]\n")
    async with running_console(dynamic_file=file) as (_, visitor):
        rows = (await visitor.data("settings"))["grids"][0]["rows"]
        assert [[cell["text"] for cell in row[:4]] for row in rows] == [
            ["frontend.namespaceRPS", "77", "0", "settings file, line 3"],
            ["matching.partitionUpscaleRPS", "123", "200", "settings file, line 2"],
        ]


async def test_a_cluster_that_is_alone_and_a_server_without_keys_say_so() -> None:
    async with running_console() as (_, visitor):
        assert "This cluster is alone" in (await visitor.data("clusters"))["sentence"]
        assert "no API keys" in (await visitor.data("keys"))["sentence"]
        assert "no audit" in (await visitor.data("audit"))["sentence"]


async def test_an_administrator_creates_and_revokes_a_key_and_finds_both_in_the_audit(tmp_path: Path) -> None:
    async with running_console(is_guarded=True, journal=tmp_path / "journal") as (server, visitor):
        await visitor.sign_in(await new_key(server, "admin", "temporal-system", name="ops"))
        form = {"name": "shop", "namespace": "default", "role": "writer", "days": "3", "reason": "a test"}
        assert (await visitor.post("keys/create", form)).status == 303
        page = (await visitor.get("keys")).body.decode()
        assert re.search(r"copy it now: \S+_\S+", page)
        rows = (await visitor.data("keys"))["grids"][0]["rows"]
        shop = next(row for row in rows if row[0]["text"] == "shop")
        assert (shop[2]["text"], shop[3]["text"]) == ("writer of default", "valid")
        revoke = {"id": shop[1]["text"], "word": "revoke", "reason": "a test"}
        assert (await visitor.post("keys/revoke", revoke)).status == 303
        rows = (await visitor.data("keys"))["grids"][0]["rows"]
        assert next(row for row in rows if row[0]["text"] == "shop")[3]["text"] == "revoked"

        rows = (await visitor.data("audit", search="Key"))["grids"][0]["rows"]
        by_operator = {row[3]["text"] for row in rows if row[2]["text"].endswith("(ops)")}
        assert by_operator >= {"fairlead/authorization.CreateKey", "fairlead/authorization.RevokeKey"}
    async with running_console(is_guarded=True, journal=tmp_path / "journal") as (server, visitor):
        await visitor.sign_in(await new_key(server, "admin", "temporal-system", name="ops"))
        rows = (await visitor.data("audit", search="Revoke"))["grids"][0]["rows"]
        assert [row[5]["text"] for row in rows] == [shop[1]["text"]]


@pytest.mark.parametrize("days", ["0", "-1", "x", "99999"])
async def test_a_key_with_a_bad_lifetime_is_refused(days: str) -> None:
    async with running_console(is_guarded=True) as (server, visitor):
        await visitor.sign_in(await new_key(server, "admin", "temporal-system"))
        reply = await visitor.post("keys/create", {"name": "x", "role": "reader", "days": days, "reason": "a test"})
        assert reply.status == 400
        assert "give a whole number" in reply.body.decode()


async def test_a_reader_of_a_namespace_sees_its_queues_and_nothing_of_the_system() -> None:
    async with running_console(is_guarded=True, namespaces=("default", "other")) as (server, visitor):
        await visitor.sign_in(await new_key(server, "reader"))
        assert (await visitor.get("task-queues.json")).status == 200
        assert (await visitor.get("task-queues.json", namespace="other")).status == 403
        for name in SYSTEM_ONLY:
            assert (await visitor.get(f"{name}.json")).status == 403, name
        page = (await visitor.get("schedules")).body.decode()
        assert "Pause" not in page
        for target, form in (
            ("keys/create", {"name": "x", "role": "admin", "days": "1", "reason": "a test"}),
            ("schedules/pause", {"schedule": "s", "reason": "a test"}),
            ("task-queue/purge", {"word": "purge", "reason": "a test"}),
            ("failover/start?name=default", {"to": "b", "word": "fail over", "reason": "a test"}),
        ):
            assert (await visitor.post(target, form)).status == 403, target

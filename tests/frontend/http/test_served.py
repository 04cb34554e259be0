"""The HTTP API of a running server: its quotas, and the headers that it hands on."""

import json
from typing import Any

import pytest

from fairlead.frontend.http.metadata import Forwarding
from fairlead.rpc.head import Head
from tests.console.web import running_console
from tests.frontend.http.client import Client

COUNT = "/api/v1/namespaces/default/workflow-count"


async def test_a_namespace_above_its_rate_gets_429_with_the_cause(tmp_path: Any) -> None:
    file = tmp_path / "dynamic.yaml"
    file.write_text(
        "frontend.namespaceRPS.visibility: [{value: 1}]\nfrontend.namespaceBurstRatio.visibility: [{value: 5.0}]\n"
    )
    async with running_console(dynamic_file=file) as (_, visitor), Client(visitor.port) as client:
        reply = await client.send("GET", COUNT)
        statuses = [reply.status]
        while reply.status != 429 and len(statuses) < 50:
            reply = await client.send("GET", COUNT)
            statuses.append(reply.status)
        assert statuses.count(200) >= 5
        assert reply.status == 429
        refused = json.loads(reply.body)
        assert (refused["code"], refused["message"]) == (8, "namespace rate limit exceeded")
        (detail,) = refused["details"]
        assert detail["@type"].endswith("ResourceExhaustedFailure")
        assert detail["cause"] == "RESOURCE_EXHAUSTED_CAUSE_RPS_LIMIT"


async def test_the_page_hands_its_caller_type_on_and_no_other_header(monkeypatch: pytest.MonkeyPatch) -> None:
    handed_on: list[dict[str, str]] = []
    head = Forwarding.head

    def noted(self: Forwarding, *arguments: Any) -> Head:
        found = head(self, *arguments)
        handed_on.append(dict(found.metadata))
        return found

    monkeypatch.setattr(Forwarding, "head", noted)
    async with running_console() as (_, visitor), Client(visitor.port) as client:
        reply = await client.send("GET", COUNT, caller_type="operator", x_other="other")
        assert reply.status == 200
    assert handed_on[-1]["caller-type"] == "operator"
    assert "x-other" not in handed_on[-1]

"""Claim mappers and authorizers of users."""

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from fairlead.authorization import DefaultAuthorizer, access_of, plugins
from fairlead.authorization.methods import WORKFLOW_SERVICE
from fairlead.authorization.plugins import UnknownPlugin, make_authorizer, make_claim_mapper
from fairlead.settings.static.authorization import AuthorizationConfig
from tests.authorization.plugins_of_test import Mapper, OnlyAlice
from tests.authorization.tokens import bearing, make_gate

MODULE = "tests.authorization.plugins_of_test"
START = access_of(WORKFLOW_SERVICE, "StartWorkflowExecution")


@pytest.mark.parametrize("separator", [":", "."])
async def test_plugins_are_found_by_their_path(separator: str) -> None:
    config = AuthorizationConfig(authorizer=f"{MODULE}{separator}OnlyAlice", claim_mapper=f"{MODULE}{separator}Mapper")
    mapper, authorizer = make_claim_mapper(config), make_authorizer(config)
    assert isinstance(mapper, Mapper)
    assert mapper.config is config
    assert isinstance(authorizer, OnlyAlice)
    gate = make_gate(mapper=mapper, authorizer=authorizer)
    assert await gate.admit(bearing("alice"), START, "orders")
    with pytest.raises(Exception, match="Request unauthorized"):
        await gate.admit(bearing("bob"), START, "orders")


def test_plugins_are_found_by_their_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry_points(*, group: str, name: str) -> list[Any]:
        known = {("fairlead.authorizers", "alice"): "OnlyAlice", ("fairlead.claim_mappers", "mine"): "Mapper"}
        found = known.get((group, name))
        return [EntryPoint(name, f"{MODULE}:{found}", group)] if found else []

    monkeypatch.setattr(plugins, "entry_points", entry_points)
    config = AuthorizationConfig(authorizer="alice", claim_mapper="mine")
    assert isinstance(make_authorizer(config), OnlyAlice)
    assert isinstance(make_claim_mapper(config), Mapper)


def test_the_defaults_need_no_plugin() -> None:
    assert isinstance(make_authorizer(AuthorizationConfig(authorizer="default")), DefaultAuthorizer)
    assert make_claim_mapper(AuthorizationConfig(authorizer="default", claim_mapper="default")) is None


@pytest.mark.parametrize(
    "name", ["unknown", "no.such.module:x", f"{MODULE}:Missing", f"{MODULE}:not_a_plugin", ":", "."]
)
def test_an_unknown_plugin_stops_the_server_from_starting(name: str) -> None:
    with pytest.raises(UnknownPlugin, match=r"authorization\.authorizer"):
        make_authorizer(AuthorizationConfig(authorizer=name))

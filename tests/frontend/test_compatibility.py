"""The page docs/compatibility.md agrees with the frontend."""

import re

import pytest

from fairlead.frontend import OPERATOR_SERVICE, WORKFLOW_SERVICE
from fairlead.frontend.compatibility import Outcome, not_implemented, render
from fairlead.frontend.gateway import service
from fairlead.frontend.gateway.service import method_names
from fairlead.frontend.handlers import system

NAMES = [*method_names(WORKFLOW_SERVICE), *method_names(OPERATOR_SERVICE)]


def rows_of(page: str) -> dict[str, tuple[str, str]]:
    rows = {name: (status, note) for name, status, note in re.findall(r"\| (\w+) \| ([\w ]+) \| (.*) \|", page)}
    del rows["method"]
    return rows


def test_every_method_has_a_row_with_the_status_that_a_call_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "NOTES", {"GetClusterInfo": "All but one."}, raising=False)
    outcomes = dict.fromkeys(NAMES, Outcome()) | {
        "ListWorkflowRules": Outcome(not_implemented("ListWorkflowRules")),
        "ListDeployments": Outcome("UNIMPLEMENTED: gone"),
        "PauseWorkflowExecution": Outcome("UNIMPLEMENTED: off", switch="a.key"),
    }
    page = render(outcomes)
    rows = rows_of(page)
    assert list(rows) == NAMES
    assert rows["GetSystemInfo"] == ("supported", "")
    assert rows["GetClusterInfo"] == ("partial", "All but one.")
    assert rows["ListWorkflowRules"] == ("not supported", "")
    assert rows["ListDeployments"] == ("rejected", "UNIMPLEMENTED: gone")
    assert rows["PauseWorkflowExecution"] == ("off by default", "Enabled by `a.key`; else UNIMPLEMENTED: off.")
    assert f"{len(method_names(WORKFLOW_SERVICE)) - 2} of {len(method_names(WORKFLOW_SERVICE))} methods." in page


def test_notes_name_existing_methods_only() -> None:
    for topic in service.TOPICS:
        there = {*getattr(topic, "METHODS", ()), *getattr(topic, "OPERATOR_METHODS", ())}
        assert set(getattr(topic, "NOTES", ())) <= there, topic.__name__

"""The page on compatibility is made from the handlers."""

import re
from pathlib import Path

import pytest

from fairlead.frontend import OPERATOR_SERVICE, WORKFLOW_SERVICE, service, system
from fairlead.frontend.compatibility import render
from fairlead.frontend.service import handlers, method_names

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"


def test_the_page_in_the_docs_is_current() -> None:
    assert PAGE.read_text() == render(), "run: python -m fairlead.frontend.compatibility > docs/compatibility.md"


def test_every_method_has_a_row_with_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "NOTES", {"GetClusterInfo": "All but one."}, raising=False)
    rows = {name: (status, note) for name, status, note in re.findall(r"\| (\w+) \| ([\w ]+) \| (.*) \|", render())}
    del rows["method"]
    assert list(rows) == [*method_names(WORKFLOW_SERVICE), *method_names(OPERATOR_SERVICE)]
    implemented = {*handlers(WORKFLOW_SERVICE), *handlers(OPERATOR_SERVICE)}
    assert {name for name, (status, _) in rows.items() if status != "not supported"} == implemented
    assert rows["GetSystemInfo"] == ("supported", "")
    assert rows["GetClusterInfo"] == ("partial", "All but one.")


def test_notes_are_of_methods_that_are_there() -> None:
    for topic in service.TOPICS:
        there = {*getattr(topic, "METHODS", ()), *getattr(topic, "OPERATOR_METHODS", ())}
        assert set(getattr(topic, "NOTES", ())) <= there, topic.__name__

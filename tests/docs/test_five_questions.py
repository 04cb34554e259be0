"""The notebook of docs/examples runs, cell by cell, and its answers are right."""

import ast
import json
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql.pandas.types import to_arrow_schema

from fairlead.pipeline.dictionary import TABLES

NOTEBOOK = Path(__file__).parents[2] / "docs" / "examples" / "five_questions.ipynb"
SHOP = {"cluster": "active", "namespace_id": "1", "namespace": "shop"}
KEY = SHOP | {"task_list": "q", "task_type": 2, "weight": 1.0}
ROWS: dict[str, list[dict[str, Any]]] = {
    "fairness_keys": [
        KEY | {"window_us": 0, "fairness_key": "small", "dispatched": 10, "fair": 20.0, "wait_s_p99": 9.0},
        KEY | {"window_us": 60, "fairness_key": "small", "dispatched": 10, "fair": 20.0, "wait_s_p99": 2.0},
        KEY | {"window_us": 0, "fairness_key": "large", "dispatched": 90, "fair": 80.0, "wait_s_p99": 1.0},
    ],
    "activity_types": [
        SHOP | {"activity_type": "charge", "scheduled": 100, "completed": 90, "failed": 10, "retried": 20}
        | {"retries": 75, "queue_wait_s_p95": 0.5, "run_s_p95": 4.0, "total_s_p95": 30.0},
        SHOP | {"activity_type": "pack", "scheduled": 50, "completed": 50, "failed": 0, "retried": 5, "retries": 25}
        | {"queue_wait_s_p95": 2.0, "run_s_p95": 1.0, "total_s_p95": 3.0},
        SHOP | {"activity_type": "broken", "scheduled": 5, "completed": 0, "failed": 5, "retried": 0, "retries": 0},
    ],
    "workflow_types": [SHOP | {"workflow_type": "Order", "runs": 10, "completed": 10}],
    "failures": [
        SHOP | {"source": "activity", "type": name, "failure_type": "Declined", "message_class": "card <n>"}
        | {"count": count, "first_us": 0, "last_us": 1_767_225_600_000_000, "workflow_ids": ["order-1", "order-2"]}
        for name, count in (("charge", 10), ("broken", 50))
    ],
    "actions": [
        SHOP | {"day": date(2026, 1, day), "kind": kind, "actions": count}
        for day, kind, count in ((1, "activity", 100), (1, "timer", 20), (2, "activity", 60))
    ],
}  # fmt: skip


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake with these rows; columns that a row lacks are null."""
    (tmp_path / "_lake.json").write_text("{}")
    for table, rows in ROWS.items():
        schema = to_arrow_schema(TABLES[table].schema).append(pa.field("namespace", pa.string()))
        (tmp_path / table).mkdir()
        plain = [{name: row.get(name) for name in schema.names} for row in rows]
        parquet.write_table(pa.Table.from_pylist(plain, schema=schema), tmp_path / table / "part-0.parquet")
    return tmp_path


def answers() -> list[list[tuple[Any, ...]]]:
    """Run the cells in one namespace, like a notebook; the last expression of a cell is its answer."""
    found: list[list[tuple[Any, ...]]] = []
    names: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] != "code":
            continue
        body = ast.parse("".join(cell["source"])).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), str(NOTEBOOK), "exec"), names)  # noqa: S102 - our own notebook
        if isinstance(last, ast.Expr):
            found.append(eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names).fetchall())  # noqa: S307
    return found


def test_the_notebook_answers_five_questions(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_LAKE", str(lake))
    waits, slow, retries, flaky, actions = answers()
    assert waits == [("shop", "q", "small", 9.0, 20, 0.5), ("shop", "q", "large", 1.0, 90, 1.13)]
    assert slow == [
        ("shop", "charge", 100, 0.5, 4.0, 30.0), ("shop", "pack", 50, 2.0, 1.0, 3.0),
        ("shop", "broken", 5, None, None, None),
    ]  # fmt: skip
    assert retries == [("shop", "charge", 20, 75, 0.75, 75.0), ("shop", "pack", 5, 25, 0.5, 25.0)]
    # A type that always fails is broken, not flaky.
    assert flaky == [("activity", "charge", "Declined", "card <n>", 10, "2026-01-01 00:00:00", "order-1")]
    assert actions == [("shop", date(2026, 1, 1), 180, 160, 90.0)]


def test_the_notebook_is_stored_without_answers() -> None:
    """Answers of another lake would be taken for those of the reader's."""
    code = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert len(code) == 6
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)

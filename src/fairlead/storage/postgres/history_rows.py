from typing import Any

import msgspec

from fairlead.storage.history_contract import Absent, Commit, CurrentWrite, IsRun
from fairlead.storage.history_visibility import VisibilityRow, encode_attributes


def commit_parameters(commit: Commit) -> tuple[str, list[bytes]]:
    """What `history_commit` takes: all rows in one JSON, without those kinds that are empty, and the blobs apart."""
    blobs: list[bytes] = []

    def blob(value: bytes) -> int:
        blobs.append(value)
        return len(blobs)

    given: dict[str, list[dict[str, Any]]] = {
        "runs": [_named(run, place=place, state=None, blob=blob(run.state)) for place, run in enumerate(commit.runs)],
        "current": [_current(place, current) for place, current in enumerate(commit.current)],
        "branches": [
            {
                "place": place,
                "tree_id": branch.tree_id,
                "branch_id": branch.branch_id,
                "ancestors": [ancestor._asdict() for ancestor in branch.ancestors],
            }
            for place, branch in enumerate(commit.branches)
        ],
        "batches": [_named(batch, payload=None, blob=blob(batch.payload)) for batch in commit.batches],
        "tasks": [
            _named(task, place=place, payload=None, blob=blob(task.payload)) for place, task in enumerate(commit.tasks)
        ],
        "visibility": [
            _named(
                row,
                memo=None,
                blob=blob(row.memo),
                search_attributes=msgspec.Raw(encode_attributes(row.search_attributes).encode()),
            )
            for row in commit.visibility
            if isinstance(row, VisibilityRow)
        ],
        "invisible": [_named(row) for row in commit.visibility if not isinstance(row, VisibilityRow)],
    }
    return msgspec.json.encode({name: rows for name, rows in given.items() if rows}).decode(), blobs


def _named(row: Any, **more: object) -> dict[str, Any]:
    return {**row._asdict(), **more}


def _current(place: int, current: CurrentWrite) -> dict[str, Any]:
    condition = current.condition
    name = "absent" if isinstance(condition, Absent) else "is_run" if isinstance(condition, IsRun) else "not_open"
    expected_run_id = condition.run_id if isinstance(condition, IsRun) else None
    return _named(current, place=place, condition=name, expected_run_id=expected_run_id)

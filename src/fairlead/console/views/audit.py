"""The audit log of this host: refusals, and calls that administer something, the newest first."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from fairlead.authorization.host_methods import HOST_METHODS
from fairlead.console.context import Context
from fairlead.console.grid import TEMPLATE, Filter, Grid, Grids, moment, text
from fairlead.console.view import Parameters, View
from fairlead.journal import Kind
from fairlead.journal.segments import BadSegment, SegmentLabel, read_segment

# Records of a page, and segments that are read for them.
ROWS: Final = 200
SEGMENTS_MAX: Final = 5


class Asked(Parameters, frozen=True, kw_only=True):
    """`search` is a part of the principal, the method, the namespace or the object; `refused` leaves out the rest."""

    search: str = ""
    refused: bool = False


async def load(context: Context, asked: Asked) -> Grids:
    """Read the newest records of the journal's audit."""
    # The audit names objects of all namespaces.
    await context.require(HOST_METHODS["authorization.ListKeys"])
    audit = context.backend.audit
    if audit is None:
        return Grids(
            grids=[],
            sentence="This server has no authorization, and so no audit. docs/security.md leads to a locked cluster.",
            kind="problem",
        )
    records = [msgspec.structs.asdict(one) for one in reversed(audit.recent)]
    journal = context.backend.config.journal
    if journal is not None and len(records) < ROWS:
        # Read older decisions from the journal: memory has only those since the start of this process.
        before_us = records[-1]["time_us"] if records else int(context.now_s * 1e6)
        records += await asyncio.to_thread(_older, Path(journal.folder), before_us)
    records = [one for one in records if _matches(one, asked)][:ROWS]
    rows = [
        [
            moment(one.get("time_us", 0) / 1e6),
            text("allowed", "good") if one.get("is_allowed") else text("refused", "bad"),
            text(f"{one.get('principal_kind', '')} {one.get('principal', '')}".strip() or "unknown"),
            text(str(one.get("method", ""))),
            text(str(one.get("namespace", ""))),
            text(str(one.get("object", ""))),
            text(str(one.get("reason", ""))),
            text(str(one.get("peer", ""))),
        ]
        for one in records
    ]
    grid = Grid(
        id="audit",
        title="Refused calls" if asked.refused else "Audit",
        columns=["When", "Decision", "Who", "Method", "Namespace", "Object", "Reason", "From"],
        rows=rows,
        empty="No record matches.",
        hint="Refusals, and calls that administer something, appear here.",
        note=f"The newest records of this host, at most {ROWS}. The job `audit_table` of the pipeline reads all hosts.",
    )
    filters = [
        Filter(text="All", changes={"refused": None}, is_current=not asked.refused),
        Filter(text="Refused", changes={"refused": "true"}, is_current=asked.refused),
    ]
    return Grids(grids=[grid], search="Who, method or object", filters=filters)


def _older(folder: Path, before_us: int) -> list[dict[str, Any]]:
    """The newest records before a time, from the last segments of the journal."""
    segments = [
        path for path in folder.glob("**/*") if (label := SegmentLabel.read(path.name)) and label.kind == Kind.AUDIT
    ]
    segments.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    found: list[dict[str, Any]] = []
    for path in segments[:SEGMENTS_MAX]:
        records: list[dict[str, Any]] = []
        # A segment may be damaged, or still being written: its records up to there count.
        with suppress(BadSegment, OSError):
            records.extend(read_segment(path))
        found += [one for one in reversed(records) if one.get("time_us", 0) < before_us]
    return found


def _matches(record: dict[str, Any], asked: Asked) -> bool:
    if asked.refused and record.get("is_allowed"):
        return False
    wanted = asked.search.casefold()
    fields = ("principal", "method", "namespace", "object", "peer")
    return not wanted or any(wanted in str(record.get(name, "")).casefold() for name in fields)


VIEW: Final = View(
    path="audit",
    title="Audit",
    nav="Audit",
    access=HOST_METHODS["authorization.ListKeys"],
    parameters=Asked,
    load=load,
    template=TEMPLATE,
    is_live=False,
)

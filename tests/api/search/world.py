"""The runs of the recorded queries, as rows; `record_queries` creates the same runs as real workflows."""

from pathlib import Path

from fairlead.api.search.names import BOOL, DATETIME, DOUBLE, INT, KEYWORD, KEYWORD_LIST, TEXT
from fairlead.storage.commit import Commit
from fairlead.storage.history import HistoryStore, SearchValue, Text, VisibilityDelete, VisibilityRow

RECORDED = Path(__file__).with_name("queries.json")
NAMESPACE_ID = "11111111-1111-1111-1111-111111111111"
CUSTOM = {
    "CustomKeyword": KEYWORD,
    "CustomInt": INT,
    "CustomDouble": DOUBLE,
    "CustomBool": BOOL,
    "CustomTime": DATETIME,
    "CustomList": KEYWORD_LIST,
    "CustomText": TEXT,
}
SECOND_NS = 10**9
START_NS = 1_794_796_855 * SECOND_NS
# Search attributes that an unversioned worker sets when it completes a workflow task.
UNVERSIONED: dict[str, SearchValue] = {"BuildIds": ("unversioned",)}


def run(workflow_id: str, kind: str, queue: str, started_s: float, **fields: object) -> VisibilityRow:
    start_ns = START_NS + round(started_s * SECOND_NS)
    row = VisibilityRow(
        NAMESPACE_ID, f"0-{workflow_id}", workflow_id, kind, 1, start_ns, start_ns, queue,
        root_workflow_id=workflow_id, root_run_id=f"0-{workflow_id}",
    )  # fmt: skip
    return row._replace(**fields)  # type: ignore[arg-type]


def closed(row: VisibilityRow, status: int, after_s: float, *, length: int, size: int, steps: int) -> VisibilityRow:
    duration_ns = round(after_s * SECOND_NS)
    return row._replace(
        status=status,
        close_time_ns=row.start_time_ns + duration_ns,
        execution_duration_ns=duration_ns,
        history_length=length,
        history_size_bytes=size,
        state_transition_count=steps,
    )


ROWS = (
    run(
        "w-1", "Alpha", "q1", 0,
        search_attributes={
            "CustomKeyword": "red",
            "CustomInt": 1,
            "CustomDouble": 1.5,
            "CustomBool": True,
            "CustomTime": 1_704_067_200 * SECOND_NS,
            "CustomList": ("a", "b"),
            "CustomText": Text("Hello brave World"),
        },
    ),
    run(
        "w-2", "Beta", "q2", 0.01,
        search_attributes={
            "CustomKeyword": "blue",
            "CustomInt": 2,
            "CustomDouble": 2.0,
            "CustomBool": False,
            "CustomTime": 1_717_236_000 * SECOND_NS + SECOND_NS // 2,
            "CustomList": ("b", "c"),
            "CustomText": Text("brave new world, hello-there"),
        },
    ),
    closed(
        run("w-3", "Alpha", "q3", 0.02, search_attributes={"CustomKeyword": "redder", "CustomInt": -5, **UNVERSIONED}),
        2, 6.4, length=5, size=405, steps=3,
    ),
    closed(run("w-4", "Beta", "q4", 6.5), 5, 0.007, length=3, size=241, steps=2),
    closed(
        run(
            "it's", "Gamma", "q5", 6.6,
            search_attributes={
                "CustomKeyword": "it's \"q\" a_b%", "CustomInt": 100, "CustomList": ("it's", "a"), **UNVERSIONED
            },
        ),
        3, 1.7, length=10, size=874, steps=6,
    ),
    run(
        "child", "Child", "q6", 7.8,
        parent_workflow_id="it's", parent_run_id="0-it's", root_workflow_id="it's", root_run_id="0-it's",
    ),
)  # fmt: skip


async def save(store: HistoryStore, *rows: VisibilityRow | VisibilityDelete) -> None:
    lease = await store.take_shard(1)
    await store.commit(1, lease.range_id, Commit(visibility=rows))

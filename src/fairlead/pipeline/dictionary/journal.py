"""Tables of the journal's own records."""

from fairlead.pipeline.dictionary.entry import Column, Table
from fairlead.pipeline.schemas import HISTORY, TASK

_ORIGIN = {
    "segment": Column("name of the journal's segment that the row comes from", '"task-v1-0000000042.zst"'),
    "position": Column("number of records before this one in the segment", "17"),
    "day": Column("UTC day of `time_us`; a folder of the table", '"2026-01-31"'),
}

TASKS = Table(
    "task",
    "ingest",
    "something that happened at a partition",
    TASK,
    {
        "kind": Column("`added`, `matched`, `forwarded`, `acked`, `poll_empty`, `config` or `backlog`", '"matched"'),
        "priority": Column("priority of the task, 1 (first) to 5", "3"),
        "pass": Column("pass at which a stored task was written; a lower pass is dispatched first", "128000"),
        "was_sync": Column("whether the task was matched without being stored", "true"),
        "was_forwarded": Column("whether task or poll came from another partition", "false"),
        "wait_us": Column("wait of a matched task since it was added, or of a poll that returned empty", "11840", "µs"),
        "tasks": Column("size of the backlog, or number of tasks acknowledged together", "250", "tasks"),
        "age_us": Column("age of the oldest task of the backlog", "4200000", "µs"),
        "pollers": Column("polls that wait at the partition", "8", "polls"),
        "read": Column("read partitions of the task queue", "4", "partitions"),
        "write": Column("write partitions of the task queue", "4", "partitions"),
        "version": Column("version of the partition configuration", "12"),
        **_ORIGIN,
    },
)
HISTORIES = Table(
    "history",
    "ingest",
    "a committed batch of events, with the state of its run after the batch",
    HISTORY,
    {
        "tree_id": Column("id of the tree of branches that the run's history belongs to", '"019a4b6e-7c1d-7e52"'),
        "branch_id": Column("id of the branch that the batch was appended to", '"019a4b6e-7c1d-7e53"'),
        "items": Column(
            "version history of the branch: the last event of each version", '[{"event_id": 9, "version": 12}]'
        ),
        "task_id": Column("id of the batch in its shard; grows with every write", "1048601"),
        "status": Column("Temporal's WorkflowExecutionStatus after the batch; 1 is running, 2 completed", "1"),
        "event_types": Column("Temporal's EventType of each event", "[10, 11]"),
        "event_digests": Column("XXH64 of each event's bytes", '["9f86d081884c7d65", "2c26b46b68ffc68f"]'),
        "signals": Column("id under which each signal is deduplicated; empty for other events", '["", "a91c"]'),
        "new_run_id": Column("id of the run that continues this one", '"019a4b70-11aa-7c11-8d2e-1f2e3d4c5b6a"'),
        "payload": Column("base64 of the events, as Temporal's `History` message; null if not journaled", '"CgwIARIA"'),
        "outline": Column("`payload` without the data of users; only with `journal.payloads: keys`", '"CgwIARIA"'),
        **_ORIGIN,
    },
)
TABLES = (TASKS, HISTORIES)

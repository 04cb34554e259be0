# ruff: noqa: S608 - the statements are built from constants of this module
"""All statements of the history store on SQLite, by name, except visibility queries (`history_search`).

The tables are in `schema/sqlite/0003_history.sql`.
"""

from functools import cache

from fairlead.storage.sqlite.many_rows import values_clause

FIND_SHARD = "SELECT range_id FROM history_shards WHERE shard_id = ?"
FIND_LEVELS = "SELECT queue, fire_at_ns, task_id FROM history_levels WHERE shard_id = ?"
SAVE_SHARD = "INSERT OR REPLACE INTO history_shards (shard_id, range_id) VALUES (?, ?)"
SAVE_LEVEL = "INSERT OR REPLACE INTO history_levels (shard_id, queue, fire_at_ns, task_id) VALUES (?, ?, ?, ?)"

LAST_RUN = "SELECT coalesce(max(run), 0) FROM history_runs"
FIND_RUN = """
SELECT run, db_version FROM history_runs
WHERE shard_id = ? AND namespace_id = ? AND workflow_id = ? AND run_id = ?
"""
READ_RUN = """
SELECT namespace_id, workflow_id, run_id, state, db_version, next_event_id, status, last_write_version
FROM history_runs WHERE shard_id = ? AND namespace_id = ? AND workflow_id = ? AND run_id = ?
"""
LIST_RUNS = """
SELECT namespace_id, workflow_id, run_id, db_version, next_event_id, status, last_write_version FROM history_runs
WHERE shard_id = ? AND (namespace_id, workflow_id, run_id) > (?, ?, ?)
ORDER BY namespace_id, workflow_id, run_id LIMIT ?
"""
DELETE_RUN = """
DELETE FROM history_runs WHERE shard_id = ? AND namespace_id = ? AND workflow_id = ? AND run_id = ?
"""
READ_CURRENT = """
SELECT namespace_id, workflow_id, run_id, request_id, status, last_write_version FROM history_currents
WHERE shard_id = ? AND namespace_id = ? AND workflow_id = ?
"""
DELETE_CURRENT = """
DELETE FROM history_currents WHERE shard_id = ? AND namespace_id = ? AND workflow_id = ? AND run_id = ?
"""

FIND_BRANCH = "SELECT branch, ancestors FROM history_branches WHERE tree_id = ? AND branch_id = ? AND NOT is_deleted"
HAS_BATCH_TO = """
SELECT 1 FROM history_batches
WHERE branch = (SELECT branch FROM history_branches WHERE tree_id = ? AND branch_id = ?)
    AND first_event_id = (
        SELECT max(first_event_id) FROM history_batches
        WHERE branch = (SELECT branch FROM history_branches WHERE tree_id = ? AND branch_id = ?)
            AND first_event_id < ?
    )
    AND last_event_id = ?
"""
SAVE_BRANCH = """
INSERT INTO history_branches (tree_id, branch_id, ancestors) VALUES (?, ?, ?)
ON CONFLICT (tree_id, branch_id) DO UPDATE SET ancestors = excluded.ancestors, is_deleted = 0
"""
MARK_BRANCH_DELETED = "UPDATE history_branches SET is_deleted = 1 WHERE tree_id = ? AND branch_id = ?"
BRANCHES_OF_TREE = "SELECT branch, branch_id, ancestors, is_deleted FROM history_branches WHERE tree_id = ?"
DELETE_BRANCH = "DELETE FROM history_branches WHERE branch = ?"
DELETE_BATCHES_FROM = "DELETE FROM history_batches WHERE branch = ? AND first_event_id >= ?"

# Branch numbers are looked up one by one, before the batches: a history has few branches.
BRANCH_NUMBER = "SELECT branch FROM history_branches WHERE tree_id = ? AND branch_id = ?"
READ_BATCHES = """
SELECT first_event_id, last_event_id, version, transaction_id, payload FROM history_batches
WHERE branch = ?1
    AND first_event_id >= coalesce(
        (SELECT max(first_event_id) FROM history_batches WHERE branch = ?1 AND first_event_id <= ?2), 0
    )
    AND first_event_id < ?3 AND last_event_id >= ?2
ORDER BY first_event_id
"""
READ_BATCHES_REVERSE = READ_BATCHES.rstrip() + " DESC"

READ_TASKS = """
SELECT fire_at_ns, task_id, payload FROM history_tasks
WHERE shard_id = ? AND queue = ? AND (fire_at_ns, task_id) > (?, ?) AND fire_at_ns <= ?
ORDER BY fire_at_ns, task_id LIMIT ?
"""
LAST_TO_DELETE = """
SELECT fire_at_ns, task_id FROM history_tasks
WHERE shard_id = ? AND queue = ? AND (fire_at_ns, task_id) <= (?, ?) ORDER BY fire_at_ns, task_id LIMIT 1 OFFSET ?
"""
DELETE_TASK = "DELETE FROM history_tasks WHERE shard_id = ? AND queue = ? AND fire_at_ns = ? AND task_id = ?"
DELETE_TASKS = "DELETE FROM history_tasks WHERE shard_id = ? AND queue = ? AND (fire_at_ns, task_id) <= (?, ?)"

_NAMESPACE_COLUMNS = "namespace_id, name, payload, version"
READ_NAMESPACE = f"SELECT {_NAMESPACE_COLUMNS} FROM namespaces WHERE namespace_id = ?"
READ_NAMESPACE_BY_NAME = f"SELECT {_NAMESPACE_COLUMNS} FROM namespaces WHERE name = ?"
LIST_NAMESPACES = f"SELECT {_NAMESPACE_COLUMNS} FROM namespaces WHERE namespace_id > ? ORDER BY namespace_id LIMIT ?"
INSERT_NAMESPACE = f"INSERT INTO namespaces ({_NAMESPACE_COLUMNS}) VALUES (?, ?, ?, ?)"
UPDATE_NAMESPACE = "UPDATE namespaces SET name = ?, payload = ?, version = ? WHERE namespace_id = ?"
DELETE_NAMESPACE = "DELETE FROM namespaces WHERE namespace_id = ?"

READ_METADATA = "SELECT key, payload, version FROM cluster_metadata WHERE key = ?"
LIST_METADATA = """
SELECT key, payload, version FROM cluster_metadata
WHERE key > ? AND key >= ? AND substr(key, 1, ?) = ? ORDER BY key LIMIT ?
"""
SAVE_METADATA = "INSERT OR REPLACE INTO cluster_metadata (key, payload, version) VALUES (?, ?, ?)"
DELETE_METADATA = "DELETE FROM cluster_metadata WHERE key = ?"

RUN_COLUMNS = 10
BRANCH_COLUMNS = 2
BATCH_COLUMNS = 6
CURRENT_COLUMNS = 7
CURRENT_KEY_COLUMNS = 3
TASK_COLUMNS = 5

VISIBILITY_NAMES = (
    "namespace_id",
    "run_id",
    "workflow_id",
    "workflow_type",
    "status",
    "start_time_ns",
    "execution_time_ns",
    "task_queue",
    "close_time_ns",
    "execution_duration_ns",
    "history_length",
    "history_size_bytes",
    "state_transition_count",
    "parent_workflow_id",
    "parent_run_id",
    "root_workflow_id",
    "root_run_id",
    "memo",
    "search_attributes",
)
SELECT_VISIBILITY = f"SELECT {', '.join(VISIBILITY_NAMES)}"

LOG_COLUMNS = len(VISIBILITY_NAMES) + 1
# The columns of a logged delete after those of its key.
LOGGED_DELETE = ("", "", 0, 0, 0, "", *[None] * 9, b"", "{}")
COUNT_LOGGED = """
SELECT count(*), coalesce(sum(length(memo) + length(CAST(search_attributes AS BLOB))), 0) FROM visibility_log
"""
# With max(), SQLite takes the other columns from the row with the highest number, which is the last one of the run.
_LAST_LOGGED = "SELECT max(number), * FROM visibility_log GROUP BY namespace_id, run_id"
DELETE_LOGGED_DELETES = f"""
DELETE FROM visibility WHERE (namespace_id, run_id) IN (
    SELECT namespace_id, run_id FROM ({_LAST_LOGGED}) WHERE is_deleted
)
"""
_MOVED = f"""
ON CONFLICT (namespace_id, run_id) DO UPDATE SET
    {", ".join(f"{name} = excluded.{name}" for name in VISIBILITY_NAMES[2:])}
"""
MOVE_LOGGED = f"""
INSERT INTO visibility ({", ".join(VISIBILITY_NAMES)})
{SELECT_VISIBILITY} FROM ({_LAST_LOGGED}) WHERE NOT is_deleted {_MOVED}
"""
LAST_LOGGED = f"SELECT number, namespace_id, run_id FROM ({_LAST_LOGGED}) WHERE NOT is_deleted"
MOVE_ONE_LOGGED = f"""
INSERT INTO visibility ({", ".join(VISIBILITY_NAMES)})
{SELECT_VISIBILITY} FROM visibility_log WHERE number = ? {_MOVED}
"""
# Without a WHERE, SQLite frees the pages without reading the rows.
CLEAR_LOG = "DELETE FROM visibility_log"


@cache
def save_runs(rows: int) -> str:
    """Save this number of runs, new or existing."""
    names = (
        "run, shard_id, namespace_id, workflow_id, run_id, db_version, next_event_id, status, last_write_version, state"
    )
    return f"""
INSERT INTO history_runs ({names}) {values_clause(rows, RUN_COLUMNS)}
ON CONFLICT (run) DO UPDATE SET
    db_version = excluded.db_version, next_event_id = excluded.next_event_id, status = excluded.status,
    last_write_version = excluded.last_write_version, state = excluded.state
"""


@cache
def find_currents(rows: int) -> str:
    """The current runs of this number of workflow ids, with their shards.

    The join looks up each run by the primary key. With `IN`, SQLite would read all rows of the shards.
    """
    return f"""
SELECT found.shard_id, found.namespace_id, found.workflow_id, run_id, request_id, status, last_write_version
FROM ({values_clause(rows, CURRENT_KEY_COLUMNS)}) AS wanted CROSS JOIN history_currents AS found
    ON found.shard_id = wanted.column1 AND found.namespace_id = wanted.column2 AND found.workflow_id = wanted.column3
"""


@cache
def number_branches(rows: int) -> str:
    """Return the number of each of these branches, as many as `rows`; insert the missing ones, without ancestors."""
    return f"""
INSERT INTO history_branches (tree_id, branch_id) {values_clause(rows, BRANCH_COLUMNS)}
ON CONFLICT (tree_id, branch_id) DO UPDATE SET is_deleted = is_deleted
RETURNING tree_id, branch_id, branch
"""


@cache
def save_batches(rows: int) -> str:
    """Save this number of batches; an existing batch is replaced only by a higher transaction id."""
    names = "branch, first_event_id, last_event_id, version, transaction_id, payload"
    return f"""
INSERT INTO history_batches ({names}) {values_clause(rows, BATCH_COLUMNS)}
ON CONFLICT (branch, first_event_id) DO UPDATE SET
    last_event_id = excluded.last_event_id, version = excluded.version,
    transaction_id = excluded.transaction_id, payload = excluded.payload
WHERE excluded.transaction_id > transaction_id
"""


@cache
def save_currents(rows: int) -> str:
    """Save the current runs of this number of workflow ids."""
    names = "shard_id, namespace_id, workflow_id, run_id, request_id, status, last_write_version"
    return f"INSERT OR REPLACE INTO history_currents ({names}) {values_clause(rows, CURRENT_COLUMNS)}"


@cache
def save_tasks(rows: int) -> str:
    """Save this number of tasks."""
    names = "shard_id, queue, fire_at_ns, task_id, payload"
    return f"INSERT OR REPLACE INTO history_tasks ({names}) {values_clause(rows, TASK_COLUMNS)}"


@cache
def log_visibility(rows: int) -> str:
    """Append this number of rows to the log of visibility rows."""
    return f"""
INSERT INTO visibility_log (is_deleted, {", ".join(VISIBILITY_NAMES)}) {values_clause(rows, LOG_COLUMNS)}
"""

"""All statements of the SQLite store, by name. The tables are in `schema/sqlite`."""

from functools import cache

from fairlead.storage.sqlite.many_rows import values_clause

BEGIN = "BEGIN IMMEDIATE"
COMMIT = "COMMIT"
ROLLBACK = "ROLLBACK"
# Changes when another connection has changed the file.
DATA_VERSION = "PRAGMA data_version"

HAS_MIGRATIONS_TABLE = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'schema_migrations'"
HAS_OTHER_TABLES = "SELECT count(*) FROM sqlite_schema WHERE type = 'table'"
CREATE_MIGRATIONS_TABLE = (
    "CREATE TABLE IF NOT EXISTS schema_migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT"
)
APPLIED_MIGRATIONS = "SELECT version FROM schema_migrations"
RECORD_MIGRATION = "INSERT INTO schema_migrations (version, name) VALUES (?, ?)"

FIND_QUEUE = """
SELECT queue, range_id, config_version, config_read, config_write
FROM queues WHERE namespace_id = ? AND name = ? AND type = ?
"""
# SQLite chooses the number if another queue has the requested number.
CREATE_QUEUE = """
INSERT INTO queues (queue, namespace_id, name, type, range_id)
VALUES ((SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM queues WHERE queue = ?1)), ?2, ?3, ?4, 0)
"""
LAST_TASK_ID = "SELECT coalesce(max(id), 0) FROM tasks WHERE queue = ?"
SAVE_QUEUE = """
UPDATE queues SET range_id = ?, config_version = ?, config_read = ?, config_write = ? WHERE queue = ?
"""
FIND_LEVELS = "SELECT priority, ack_pass, ack_id, max_pass, max_id, tasks FROM levels WHERE queue = ?"

# Statements for many rows, because a call of SQLite releases the GIL and costs more than a row.
LEVEL_COLUMNS = 7
TASK_COLUMNS = 8


@cache
def save_levels(rows: int) -> str:
    """Save the levels of this number of priorities."""
    columns = "queue, priority, ack_pass, ack_id, max_pass, max_id, tasks"
    return f"INSERT OR REPLACE INTO levels ({columns}) {values_clause(rows, LEVEL_COLUMNS)}"


@cache
def insert_tasks(rows: int) -> str:
    """Insert this number of tasks."""
    columns = "queue, priority, pass, id, fairness_key, weight, payload, created_s"
    return f"INSERT INTO tasks ({columns}) {values_clause(rows, TASK_COLUMNS)}"


# The last row to delete if `limit` rows are deleted: most builds of SQLite lack DELETE ... LIMIT.
LAST_TO_DELETE = """
SELECT pass, id FROM tasks
WHERE queue = ? AND priority = ? AND (pass, id) <= (?, ?) ORDER BY pass, id LIMIT 1 OFFSET ?
"""
DELETE_TASKS = "DELETE FROM tasks WHERE queue = ? AND priority = ? AND (pass, id) <= (?, ?)"

READ_TASKS = """
SELECT pass, id, fairness_key, weight, payload, created_s FROM tasks
WHERE queue = (SELECT queue FROM queues WHERE namespace_id = ? AND name = ? AND type = ?)
    AND priority = ? AND (pass, id) > (?, ?)
ORDER BY pass, id LIMIT ?
"""
# In the order of the primary key: grouping a million keys in SQLite takes more than twice the CPU.
READ_KEYS = """
SELECT fairness_key, pass, weight FROM tasks
WHERE queue = (SELECT queue FROM queues WHERE namespace_id = ? AND name = ? AND type = ?)
    AND priority = ? AND (pass, id) > (?, ?)
ORDER BY pass, id
"""
LOAD_CONFIG = """
SELECT config_version, config_read, config_write FROM queues WHERE namespace_id = ? AND name = ? AND type = ?
"""
SAVE_RULES = "UPDATE queues SET rules = ? WHERE queue = ?"
LOAD_RULES = "SELECT rules FROM queues WHERE namespace_id = ? AND name = ? AND type = ?"
COUNT_TASKS = """
SELECT range_id, coalesce((SELECT sum(tasks) FROM levels WHERE levels.queue = queues.queue), 0)
FROM queues WHERE namespace_id = ? AND name = ? AND type = ?
"""
# The names of a task queue's partitions are adjacent in the index. "0" is the character after "/", so it ends the
# range.
LIST_PARTITIONS = """
SELECT name, EXISTS (SELECT 1 FROM levels WHERE levels.queue = queues.queue AND tasks > 0)
FROM queues WHERE namespace_id = ?1 AND name > ?2 || '/' AND name < ?2 || '0' AND type = ?3
"""
LIST_QUEUES = """
SELECT namespace_id, name, type FROM queues WHERE (namespace_id, name, type) > (?, ?, ?)
ORDER BY namespace_id, name, type LIMIT ?
"""
LIST_QUEUES_OF_NAMESPACE = """
SELECT namespace_id, name, type FROM queues WHERE namespace_id = ? AND (namespace_id, name, type) > (?, ?, ?)
ORDER BY namespace_id, name, type LIMIT ?
"""

SAVE_MEMBER = "INSERT OR REPLACE INTO members (host, expires_s) VALUES (?, ?)"
FORGET_MEMBERS = "DELETE FROM members WHERE expires_s <= ?"
DELETE_MEMBER = "DELETE FROM members WHERE host = ?"
LIVE_MEMBERS = "SELECT host, expires_s FROM members WHERE expires_s > ? ORDER BY host"

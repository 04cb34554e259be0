# ruff: noqa: S608 - the statements are built from constants of this module
"""All statements of the history store on PostgreSQL, by name, except visibility queries (`history_search`).

The writes of commits and of completed tasks are in `history_writes`, the look-ups of current runs in `current_lookups`.
Operations of several steps are functions in `schema/postgres`.
"""

TAKE_SHARD = """
INSERT INTO history_shards (shard_id, range_id) VALUES (%(shard_id)s, 1)
ON CONFLICT (shard_id) DO UPDATE SET range_id = history_shards.range_id + 1
RETURNING range_id
"""
RENEW_SHARD = """
UPDATE history_shards SET range_id = range_id + 1
WHERE shard_id = %(shard_id)s AND range_id = %(range_id)s RETURNING range_id
"""
LOAD_LEVELS = "SELECT queue, fire_at_ns, task_id FROM history_levels WHERE shard_id = %(shard_id)s ORDER BY queue"
LOAD_LEVEL = "SELECT fire_at_ns, task_id FROM history_levels WHERE shard_id = %(shard_id)s AND queue = %(queue)s"

DELETE_RUN = """
SELECT history_delete_run(
    %(shard_id)s::integer, %(range_id)s::bigint,
    %(namespace_id)s::text, %(workflow_id)s::text, %(run_id)s::text, %(trees)s::text[], %(branches)s::text[]
)
"""

READ_RUN = """
SELECT namespace_id, workflow_id, run_id, state, db_version, next_event_id, status, last_write_version
FROM history_runs
WHERE shard_id = %(shard_id)s AND namespace_id = %(namespace_id)s AND workflow_id = %(workflow_id)s
    AND run_id = %(run_id)s
"""
LIST_RUNS = """
SELECT namespace_id, workflow_id, run_id, db_version, next_event_id, status, last_write_version FROM history_runs
WHERE shard_id = %(shard_id)s
    AND (namespace_id, workflow_id, run_id) > (%(namespace_id)s::text, %(workflow_id)s::text, %(run_id)s::text)
ORDER BY namespace_id, workflow_id, run_id LIMIT %(limit)s
"""
FIND_BRANCH = """
SELECT ancestors::text, is_deleted FROM history_branches WHERE tree_id = %(tree_id)s AND branch_id = %(branch_id)s
"""
_READ_BATCHES = """
SELECT first_event_id, last_event_id, version, transaction_id, payload FROM (
    SELECT *, sum(octet_length(payload)) OVER (ORDER BY first_event_id {direction}) AS read_bytes FROM (
        SELECT first_event_id, last_event_id, version, transaction_id, payload FROM history_batches
        WHERE tree_id = %(tree_id)s AND branch_id = %(branch_id)s
            AND first_event_id >= coalesce((
                SELECT max(first_event_id) FROM history_batches
                WHERE tree_id = %(tree_id)s AND branch_id = %(branch_id)s AND first_event_id <= %(from_event_id)s
            ), 0)
            AND first_event_id < %(to_event_id)s AND last_event_id >= %(from_event_id)s
        ORDER BY first_event_id {direction} LIMIT %(limit)s
    ) AS page
) AS summed
-- With the first that is too much, which shows that there are more.
WHERE read_bytes - octet_length(payload) <= %(limit_bytes)s
ORDER BY first_event_id {direction}
"""
READ_BATCHES = _READ_BATCHES.replace("{direction}", "ASC")
READ_BATCHES_REVERSE = _READ_BATCHES.replace("{direction}", "DESC")

READ_TASKS = """
SELECT fire_at_ns, task_id, payload FROM history_tasks
WHERE shard_id = %(shard_id)s AND queue = %(queue)s
    AND (fire_at_ns, task_id) > (%(fire_at_ns)s, %(task_id)s) AND fire_at_ns <= %(until_ns)s
ORDER BY fire_at_ns, task_id LIMIT %(limit)s
"""
# An exclusive lock: no commit runs while the level is raised, so no commit can add a task below it.
COMPLETE_TASKS = """
WITH fence AS (
    SELECT shard_id FROM history_shards WHERE shard_id = %(shard_id)s AND range_id = %(range_id)s FOR UPDATE
), saved AS (
    INSERT INTO history_levels AS old (shard_id, queue, fire_at_ns, task_id)
    SELECT shard_id, %(queue)s, %(fire_at_ns)s::bigint, %(task_id)s::bigint FROM fence
    WHERE %(fire_at_ns)s::bigint IS NOT NULL
    ON CONFLICT (shard_id, queue) DO UPDATE SET fire_at_ns = excluded.fire_at_ns, task_id = excluded.task_id
    WHERE (excluded.fire_at_ns, excluded.task_id) > (old.fire_at_ns, old.task_id)
), single AS (
    DELETE FROM history_tasks AS task
    USING fence, unnest(%(single_fire_at_ns)s::bigint[], %(single_task_ids)s::bigint[]) AS given (fire_at_ns, task_id)
    WHERE task.shard_id = fence.shard_id AND task.queue = %(queue)s
        AND task.fire_at_ns = given.fire_at_ns AND task.task_id = given.task_id
    RETURNING 1
), deleted AS (
    DELETE FROM history_tasks WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM history_tasks
        WHERE shard_id = (SELECT shard_id FROM fence) AND queue = %(queue)s
            AND (fire_at_ns, task_id) <= (%(fire_at_ns)s::bigint, %(task_id)s::bigint)
            AND (fire_at_ns, task_id) NOT IN (
                SELECT * FROM unnest(%(single_fire_at_ns)s::bigint[], %(single_task_ids)s::bigint[])
            )
        ORDER BY fire_at_ns, task_id LIMIT %(limit)s
    ))
    RETURNING 1
)
SELECT (SELECT count(*) FROM single) + (SELECT count(*) FROM deleted) FROM fence
"""

_NAMESPACE_COLUMNS = "namespace_id, name, payload, version"
READ_NAMESPACE = f"SELECT {_NAMESPACE_COLUMNS} FROM namespaces WHERE namespace_id = %(namespace_id)s"
READ_NAMESPACE_BY_NAME = f"SELECT {_NAMESPACE_COLUMNS} FROM namespaces WHERE name = %(name)s"
LIST_NAMESPACES = f"""
SELECT {_NAMESPACE_COLUMNS} FROM namespaces WHERE namespace_id > %(after)s ORDER BY namespace_id LIMIT %(limit)s
"""
CREATE_NAMESPACE = f"""
INSERT INTO namespaces ({_NAMESPACE_COLUMNS})
VALUES (%(namespace_id)s, %(name)s, %(payload)s, %(version)s) ON CONFLICT DO NOTHING RETURNING version
"""
CHANGE_NAMESPACE = """
UPDATE namespaces
SET name = coalesce(%(name)s::text, name), payload = coalesce(%(payload)s::bytea, payload), version = version + 1
WHERE namespace_id = %(namespace_id)s AND version = %(expected_version)s RETURNING version
"""
DELETE_NAMESPACE = """
DELETE FROM namespaces WHERE namespace_id = %(namespace_id)s AND version = %(expected_version)s RETURNING version
"""

READ_METADATA = "SELECT key, payload, version FROM cluster_metadata WHERE key = %(key)s"
LIST_METADATA = """
SELECT key, payload, version FROM cluster_metadata
WHERE key > %(after)s AND key >= %(prefix)s::text AND starts_with(key, %(prefix)s::text) ORDER BY key LIMIT %(limit)s
"""
CREATE_METADATA = """
INSERT INTO cluster_metadata (key, payload, version) VALUES (%(key)s, %(payload)s, 1)
ON CONFLICT DO NOTHING RETURNING version
"""
UPDATE_METADATA = """
UPDATE cluster_metadata SET payload = %(payload)s, version = version + 1
WHERE key = %(key)s AND version = %(expected_version)s RETURNING version
"""
DELETE_METADATA = """
DELETE FROM cluster_metadata WHERE key = %(key)s AND version = %(expected_version)s RETURNING version
"""

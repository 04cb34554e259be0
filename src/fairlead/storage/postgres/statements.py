# ruff: noqa: S608 - the statements are built from constants of this module
"""All statements of the store, by name, except appends (`appends`).

Each statement is a transaction, so that no lock is held while a client computes. Only the steps of a migration share a
transaction.

A write begins with the fence, which locks the queue's row, and finds the row only if it has the writer's range id. READ
COMMITTED is enough: a statement that waited for the lock reads the row again, so after a takeover the fence is empty
and nothing is written. A takeover that waited for the lock reads after all writes with the old range id are committed,
and no further one can follow.
"""

# If several hosts start at the same time, one host migrates the schema and the other hosts wait.
LOCK_SCHEMA = "SELECT pg_advisory_xact_lock(%(lock)s)"
ALLOW_TIME = "SELECT set_config('statement_timeout', %(limit)s, true)"
# For visibility queries: allow every plan until the end of the transaction.
ALLOW_ANY_PLAN = """
SELECT set_config('enable_bitmapscan', 'on', true), set_config('enable_sort', 'on', true),
    set_config('enable_seqscan', 'on', true)
"""
HAS_MIGRATIONS_TABLE = "SELECT to_regclass('schema_migrations') IS NOT NULL"
CREATE_MIGRATIONS_TABLE = "CREATE TABLE schema_migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL)"
APPLIED_MIGRATIONS = "SELECT version FROM schema_migrations"
RECORD_MIGRATION = "INSERT INTO schema_migrations (version, name) VALUES (%(version)s, %(name)s)"

_FENCE = """
WITH fence AS (
    SELECT number FROM queues WHERE digest = %(digest)s AND range_id = %(range_id)s FOR UPDATE
)"""

# Levels never decrease, because an owner's writes may arrive out of order.
_SAVED = """
, saved AS (
    INSERT INTO queue_levels AS old (queue_number, priority, ack_pass, ack_id, max_pass, max_id)
    SELECT fence.number, reached.*
    FROM fence, unnest(
        %(priorities)s::integer[],
        %(ack_passes)s::bigint[], %(ack_ids)s::bigint[], %(max_passes)s::bigint[], %(max_ids)s::bigint[]
    ) AS reached
    ON CONFLICT (queue_number, priority) DO UPDATE SET
        (ack_pass, ack_id) = (
            SELECT pass, id FROM (VALUES (old.ack_pass, old.ack_id), (excluded.ack_pass, excluded.ack_id))
                AS both_levels (pass, id) ORDER BY pass DESC, id DESC LIMIT 1
        ),
        (max_pass, max_id) = (
            SELECT pass, id FROM (VALUES (old.max_pass, old.max_id), (excluded.max_pass, excluded.max_id))
                AS both_levels (pass, id) ORDER BY pass DESC, id DESC LIMIT 1
        )
)"""

TAKE_LEASE = """
INSERT INTO queues (digest, root_digest, namespace_id, name, type, range_id)
VALUES (%(digest)s, %(root_digest)s, %(namespace_id)s, %(name)s, %(type)s, 1)
ON CONFLICT (digest) DO UPDATE SET range_id = queues.range_id + 1, root_digest = excluded.root_digest
RETURNING range_id, number, config_version, config_read, config_write
"""

RENEW_LEASE = """
UPDATE queues SET range_id = range_id + 1 WHERE digest = %(digest)s AND range_id = %(range_id)s RETURNING range_id
"""

LOAD_LEVELS = """
SELECT priority, ack_pass, ack_id, max_pass, max_id FROM queue_levels WHERE queue_number = %(number)s ORDER BY priority
"""

SAVE_LEVELS = _FENCE + _SAVED + " SELECT number FROM fence"

# The index finds the rows in order; they are deleted by ctid, which is safe because the fence keeps other writes out.
DELETE_THROUGH = (
    _FENCE
    + _SAVED
    + """
, deleted AS (
    DELETE FROM tasks WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM tasks
        WHERE queue_number = (SELECT number FROM fence) AND priority = %(priority)s
            AND (pass, task_id) <= (%(pass)s, %(task_id)s)
        ORDER BY pass, task_id LIMIT %(limit)s
    ))
    RETURNING 1
)
SELECT (SELECT count(*) FROM deleted) FROM fence
"""
)

SAVE_CONFIG = """
UPDATE queues SET config_version = %(version)s, config_read = %(read)s, config_write = %(write)s
WHERE digest = %(digest)s AND range_id = %(range_id)s
RETURNING number
"""

LOAD_CONFIG = "SELECT config_version, config_read, config_write FROM queues WHERE digest = %(digest)s"

SAVE_RULES = """
UPDATE queues SET config_version = %(version)s, config_read = %(read)s, config_write = %(write)s, rules = %(rules)s
WHERE digest = %(digest)s AND range_id = %(range_id)s
RETURNING number
"""

LOAD_RULES = "SELECT rules FROM queues WHERE digest = %(digest)s"

READ = """
SELECT pass, task_id, fairness_key, weight, payload, created_s FROM tasks
WHERE queue_number = (SELECT number FROM queues WHERE digest = %(digest)s) AND priority = %(priority)s
    AND (pass, task_id) > (%(pass)s, %(task_id)s)
ORDER BY pass, task_id LIMIT %(limit)s
"""

# The aggregation finds the highest task of each key; its row is read afterwards, for the weight.
STORED_KEYS = """
WITH queue AS (
    SELECT number FROM queues WHERE digest = %(digest)s
), key AS (
    SELECT fairness_key, min(pass) AS first_pass, max(ARRAY[pass, task_id]) AS last_level FROM tasks
    WHERE queue_number = (SELECT number FROM queue) AND priority = %(priority)s
        AND (pass, task_id) > (%(pass)s, %(task_id)s)
    GROUP BY fairness_key
)
SELECT key.fairness_key, key.first_pass, last.pass, last.weight FROM key
JOIN tasks AS last ON last.queue_number = (SELECT number FROM queue) AND last.priority = %(priority)s
    AND last.pass = key.last_level[1] AND last.task_id = key.last_level[2]
"""

# No lock: after a lease was taken or renewed, only writes with the new range id can be in flight.
COUNT = """
SELECT (SELECT count(*) FROM tasks WHERE queue_number = queues.number) FROM queues
WHERE digest = %(digest)s AND range_id = %(range_id)s
"""

LIST_PARTITIONS = """
SELECT name, EXISTS (SELECT 1 FROM tasks WHERE queue_number = queues.number)
FROM queues WHERE root_digest = %(digest)s
"""

LIST_QUEUES = """
SELECT namespace_id, name, type FROM queues
WHERE (%(namespace_id)s::text IS NULL OR namespace_id = %(namespace_id)s)
    AND (%(after_name)s::text IS NULL
        OR (namespace_id, name, type) > (%(after_namespace_id)s::text, %(after_name)s::text, %(after_type)s::integer))
ORDER BY namespace_id, name, type LIMIT %(limit)s
"""

HEARTBEAT = """
WITH forgotten AS (
    DELETE FROM members WHERE host <> %(host)s AND expires_s <= %(forgotten_s)s
), own AS (
    INSERT INTO members (host, expires_s) VALUES (%(host)s, %(expires_s)s)
    ON CONFLICT (host) DO UPDATE SET expires_s = excluded.expires_s
    RETURNING host, expires_s
)
SELECT host, expires_s FROM (
    SELECT host, expires_s FROM own
    UNION ALL
    SELECT host, expires_s FROM members WHERE host <> %(host)s AND expires_s > %(forgotten_s)s
) AS alive
WHERE expires_s > %(now_s)s ORDER BY host
"""

LEAVE = "DELETE FROM members WHERE host = %(host)s"

MEMBERS = "SELECT host, expires_s FROM members WHERE expires_s > %(now_s)s ORDER BY host"

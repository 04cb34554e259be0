-- One row per shard. Commits share its lock, so that they run in parallel; a takeover waits for all of them.
CREATE TABLE history_shards (
    shard_id INTEGER NOT NULL PRIMARY KEY,
    range_id BIGINT  NOT NULL
) WITH (fillfactor = 50);

-- The completed level of each queue of a shard.
CREATE TABLE history_levels (
    shard_id   INTEGER NOT NULL,
    queue      TEXT    NOT NULL COLLATE "C",
    fire_at_ns BIGINT  NOT NULL,
    task_id    BIGINT  NOT NULL,
    PRIMARY KEY (shard_id, queue)
) WITH (fillfactor = 50);

CREATE TABLE history_runs (
    shard_id           INTEGER NOT NULL,
    namespace_id       TEXT    NOT NULL COLLATE "C",
    workflow_id        TEXT    NOT NULL COLLATE "C",
    run_id             TEXT    NOT NULL COLLATE "C",
    db_version         BIGINT  NOT NULL,
    next_event_id      BIGINT  NOT NULL,
    status             INTEGER NOT NULL,
    last_write_version BIGINT  NOT NULL,
    state              BYTEA   NOT NULL,
    PRIMARY KEY (shard_id, namespace_id, workflow_id, run_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE history_currents (
    shard_id           INTEGER NOT NULL,
    namespace_id       TEXT    NOT NULL COLLATE "C",
    workflow_id        TEXT    NOT NULL COLLATE "C",
    run_id             TEXT    NOT NULL,
    request_id         TEXT    NOT NULL,
    status             INTEGER NOT NULL,
    last_write_version BIGINT  NOT NULL,
    PRIMARY KEY (shard_id, namespace_id, workflow_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

-- Only branches that begin with events of other branches, or that are deleted while others share their events.
-- ancestors: [{"branch_id": ..., "end_event_id": ...}, ...]
CREATE TABLE history_branches (
    tree_id    TEXT    NOT NULL COLLATE "C",
    branch_id  TEXT    NOT NULL COLLATE "C",
    ancestors  JSONB   NOT NULL,
    is_deleted BOOLEAN NOT NULL,
    PRIMARY KEY (tree_id, branch_id)
);

CREATE TABLE history_batches (
    tree_id        TEXT   NOT NULL COLLATE "C",
    branch_id      TEXT   NOT NULL COLLATE "C",
    first_event_id BIGINT NOT NULL,
    last_event_id  BIGINT NOT NULL,
    version        BIGINT NOT NULL,
    transaction_id BIGINT NOT NULL,
    payload        BYTEA  NOT NULL,
    PRIMARY KEY (tree_id, branch_id, first_event_id)
);

CREATE TABLE history_tasks (
    shard_id   INTEGER NOT NULL,
    queue      TEXT    NOT NULL COLLATE "C",
    fire_at_ns BIGINT  NOT NULL,
    task_id    BIGINT  NOT NULL,
    payload    BYTEA   NOT NULL,
    PRIMARY KEY (shard_id, queue, fire_at_ns, task_id)
    -- Rows are short-lived: by default, autovacuum starts at 20% dead rows, too late for a large table.
) WITH (autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE namespaces (
    namespace_id TEXT   NOT NULL COLLATE "C" PRIMARY KEY,
    name         TEXT   NOT NULL COLLATE "C" UNIQUE,
    payload      BYTEA  NOT NULL,
    version      BIGINT NOT NULL
);

CREATE TABLE cluster_metadata (
    key     TEXT   NOT NULL COLLATE "C" PRIMARY KEY,
    payload BYTEA  NOT NULL,
    version BIGINT NOT NULL
);

CREATE TABLE visibility (
    namespace_id           TEXT    NOT NULL COLLATE "C",
    run_id                 TEXT    NOT NULL COLLATE "C",
    workflow_id            TEXT    NOT NULL COLLATE "C",
    workflow_type          TEXT    NOT NULL COLLATE "C",
    status                 BIGINT  NOT NULL,
    start_time_ns          BIGINT  NOT NULL,
    execution_time_ns      BIGINT  NOT NULL,
    task_queue             TEXT    NOT NULL COLLATE "C",
    close_time_ns          BIGINT,
    execution_duration_ns  BIGINT,
    history_length         BIGINT,
    history_size_bytes     BIGINT,
    state_transition_count BIGINT,
    parent_workflow_id     TEXT    COLLATE "C",
    parent_run_id          TEXT    COLLATE "C",
    root_workflow_id       TEXT    COLLATE "C",
    root_run_id            TEXT    COLLATE "C",
    memo                   BYTEA   NOT NULL,
    search_attributes      JSONB   NOT NULL,
    PRIMARY KEY (namespace_id, run_id)
);

-- The default order of lists: open runs sort as if closed at the end of time.
CREATE INDEX visibility_latest
    ON visibility (namespace_id, coalesce(close_time_ns, 9223372036854775807), start_time_ns, run_id);
-- The same for one workflow id, to find its few runs without reading all others.
CREATE INDEX visibility_workflow ON visibility (
    namespace_id, workflow_id, coalesce(close_time_ns, 9223372036854775807), start_time_ns, run_id
);
CREATE INDEX visibility_attributes ON visibility USING gin (search_attributes jsonb_path_ops);

-- One commit: check all conditions first, then write all rows. It is a function because each of its statements sees
-- what was committed before that statement began: statements after the fence see all earlier commits.
-- `given` has arrays of objects; `blob` in an object is an index into `blobs`. The result is 'done', or the condition
-- that is not met, and the index in its array.
CREATE FUNCTION history_commit(the_shard INTEGER, the_range BIGINT, given JSONB, blobs BYTEA[])
RETURNS TABLE (outcome TEXT, place INTEGER) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM history_shards WHERE shard_id = the_shard AND range_id = the_range FOR SHARE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'lease', 0;
        RETURN;
    END IF;

    IF given ? 'current' THEN
        PERFORM 1 FROM history_currents AS old
        JOIN jsonb_to_recordset(given -> 'current') AS new (namespace_id TEXT, workflow_id TEXT)
            ON old.shard_id = the_shard AND old.namespace_id = new.namespace_id AND old.workflow_id = new.workflow_id
        ORDER BY old.namespace_id, old.workflow_id FOR UPDATE OF old;
        RETURN QUERY
            SELECT 'current', new.place
            FROM jsonb_to_recordset(given -> 'current')
                AS new (place INTEGER, namespace_id TEXT, workflow_id TEXT, condition TEXT, expected_run_id TEXT)
            LEFT JOIN history_currents AS old
                ON old.shard_id = the_shard AND old.namespace_id = new.namespace_id AND old.workflow_id = new.workflow_id
            WHERE NOT CASE new.condition
                WHEN 'absent' THEN old.run_id IS NULL
                WHEN 'is_run' THEN old.run_id IS NOT DISTINCT FROM new.expected_run_id
                ELSE old.run_id IS NULL OR old.status NOT IN (1, 8)
            END
            LIMIT 1;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;

    IF given ? 'runs' THEN
        PERFORM 1 FROM history_runs AS old
        JOIN jsonb_to_recordset(given -> 'runs') AS new (namespace_id TEXT, workflow_id TEXT, run_id TEXT)
            ON old.shard_id = the_shard AND old.namespace_id = new.namespace_id
            AND old.workflow_id = new.workflow_id AND old.run_id = new.run_id
        ORDER BY old.namespace_id, old.workflow_id, old.run_id FOR UPDATE OF old;
        RETURN QUERY
            SELECT 'run', new.place
            FROM jsonb_to_recordset(given -> 'runs')
                AS new (place INTEGER, namespace_id TEXT, workflow_id TEXT, run_id TEXT, expected_db_version BIGINT)
            LEFT JOIN history_runs AS old
                ON old.shard_id = the_shard AND old.namespace_id = new.namespace_id
                AND old.workflow_id = new.workflow_id AND old.run_id = new.run_id
            WHERE old.db_version IS DISTINCT FROM new.expected_db_version
            LIMIT 1;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;

    IF given ? 'tasks' THEN
        RETURN QUERY
            SELECT 'task', new.place
            FROM jsonb_to_recordset(given -> 'tasks')
                AS new (place INTEGER, queue TEXT, fire_at_ns BIGINT, task_id BIGINT)
            JOIN history_levels AS level ON level.shard_id = the_shard AND level.queue = new.queue
            WHERE (new.fire_at_ns, new.task_id) <= (level.fire_at_ns, level.task_id)
            LIMIT 1;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;

    IF given ? 'branches' THEN
        RETURN QUERY
            SELECT 'branch', new.place
            FROM jsonb_to_recordset(given -> 'branches') AS new (place INTEGER, tree_id TEXT, ancestors JSONB),
                jsonb_to_recordset(new.ancestors) AS ancestor (branch_id TEXT, end_event_id BIGINT)
            WHERE ancestor.end_event_id - 1 IS DISTINCT FROM (
                SELECT last_event_id FROM history_batches AS batch
                WHERE batch.tree_id = new.tree_id AND batch.branch_id = ancestor.branch_id
                    AND batch.first_event_id < ancestor.end_event_id
                ORDER BY first_event_id DESC LIMIT 1
            )
            LIMIT 1;
        IF FOUND THEN
            RETURN;
        END IF;
        INSERT INTO history_branches (tree_id, branch_id, ancestors, is_deleted)
        SELECT new.tree_id, new.branch_id, new.ancestors, FALSE
        FROM jsonb_to_recordset(given -> 'branches') AS new (tree_id TEXT, branch_id TEXT, ancestors JSONB)
        ON CONFLICT (tree_id, branch_id) DO UPDATE SET ancestors = excluded.ancestors, is_deleted = FALSE;
    END IF;

    IF given ? 'runs' THEN
        UPDATE history_runs AS old SET
            db_version = old.db_version + 1, next_event_id = new.next_event_id, status = new.status,
            last_write_version = new.last_write_version, state = blobs[new.blob]
        FROM jsonb_to_recordset(given -> 'runs') AS new (
            namespace_id TEXT, workflow_id TEXT, run_id TEXT, expected_db_version BIGINT,
            next_event_id BIGINT, status INTEGER, last_write_version BIGINT, blob INTEGER
        )
        WHERE old.shard_id = the_shard AND old.namespace_id = new.namespace_id
            AND old.workflow_id = new.workflow_id AND old.run_id = new.run_id;
        -- Not "on conflict": a run that a concurrent commit created since the check must not be overwritten.
        INSERT INTO history_runs (
            shard_id, namespace_id, workflow_id, run_id, db_version, next_event_id, status, last_write_version, state
        )
        SELECT the_shard, new.namespace_id, new.workflow_id, new.run_id, 1,
            new.next_event_id, new.status, new.last_write_version, blobs[new.blob]
        FROM jsonb_to_recordset(given -> 'runs') AS new (
            namespace_id TEXT, workflow_id TEXT, run_id TEXT, expected_db_version BIGINT,
            next_event_id BIGINT, status INTEGER, last_write_version BIGINT, blob INTEGER
        )
        WHERE new.expected_db_version IS NULL;
    END IF;

    IF given ? 'current' THEN
        WITH new AS MATERIALIZED (
            SELECT * FROM jsonb_to_recordset(given -> 'current') AS row (
                namespace_id TEXT, workflow_id TEXT, run_id TEXT, request_id TEXT, status INTEGER,
                last_write_version BIGINT
            )
        ), updated AS (
            UPDATE history_currents AS old SET
                run_id = new.run_id, request_id = new.request_id, status = new.status,
                last_write_version = new.last_write_version
            FROM new
            WHERE old.shard_id = the_shard AND old.namespace_id = new.namespace_id
                AND old.workflow_id = new.workflow_id
            RETURNING old.namespace_id, old.workflow_id
        )
        INSERT INTO history_currents (
            shard_id, namespace_id, workflow_id, run_id, request_id, status, last_write_version
        )
        SELECT the_shard, new.* FROM new
        WHERE NOT EXISTS (
            SELECT 1 FROM updated
            WHERE updated.namespace_id = new.namespace_id AND updated.workflow_id = new.workflow_id
        );
    END IF;

    IF given ? 'batches' THEN
        INSERT INTO history_batches AS old (
            tree_id, branch_id, first_event_id, last_event_id, version, transaction_id, payload
        )
        SELECT new.tree_id, new.branch_id, new.first_event_id, new.last_event_id, new.version, new.transaction_id,
            blobs[new.blob]
        FROM jsonb_to_recordset(given -> 'batches') AS new (
            tree_id TEXT, branch_id TEXT, first_event_id BIGINT, last_event_id BIGINT, version BIGINT,
            transaction_id BIGINT, blob INTEGER
        )
        ON CONFLICT (tree_id, branch_id, first_event_id) DO UPDATE SET
            last_event_id = excluded.last_event_id, version = excluded.version,
            transaction_id = excluded.transaction_id, payload = excluded.payload
        WHERE excluded.transaction_id > old.transaction_id;
    END IF;

    IF given ? 'tasks' THEN
        INSERT INTO history_tasks (shard_id, queue, fire_at_ns, task_id, payload)
        SELECT the_shard, new.queue, new.fire_at_ns, new.task_id, blobs[new.blob]
        FROM jsonb_to_recordset(given -> 'tasks')
            AS new (queue TEXT, fire_at_ns BIGINT, task_id BIGINT, blob INTEGER)
        ON CONFLICT (shard_id, queue, fire_at_ns, task_id) DO UPDATE SET payload = excluded.payload;
    END IF;

    IF given ? 'visibility' THEN
        INSERT INTO visibility
        SELECT new.namespace_id, new.run_id, new.workflow_id, new.workflow_type, new.status, new.start_time_ns,
            new.execution_time_ns, new.task_queue, new.close_time_ns, new.execution_duration_ns, new.history_length,
            new.history_size_bytes, new.state_transition_count, new.parent_workflow_id, new.parent_run_id,
            new.root_workflow_id, new.root_run_id, blobs[new.blob], new.search_attributes
        FROM jsonb_to_recordset(given -> 'visibility') AS new (
            namespace_id TEXT, run_id TEXT, workflow_id TEXT, workflow_type TEXT, status BIGINT, start_time_ns BIGINT,
            execution_time_ns BIGINT, task_queue TEXT, close_time_ns BIGINT, execution_duration_ns BIGINT,
            history_length BIGINT, history_size_bytes BIGINT, state_transition_count BIGINT, parent_workflow_id TEXT,
            parent_run_id TEXT, root_workflow_id TEXT, root_run_id TEXT, blob INTEGER, search_attributes JSONB
        )
        ON CONFLICT (namespace_id, run_id) DO UPDATE SET
            workflow_id = excluded.workflow_id, workflow_type = excluded.workflow_type, status = excluded.status,
            start_time_ns = excluded.start_time_ns, execution_time_ns = excluded.execution_time_ns,
            task_queue = excluded.task_queue, close_time_ns = excluded.close_time_ns,
            execution_duration_ns = excluded.execution_duration_ns, history_length = excluded.history_length,
            history_size_bytes = excluded.history_size_bytes,
            state_transition_count = excluded.state_transition_count,
            parent_workflow_id = excluded.parent_workflow_id, parent_run_id = excluded.parent_run_id,
            root_workflow_id = excluded.root_workflow_id, root_run_id = excluded.root_run_id, memo = excluded.memo,
            search_attributes = excluded.search_attributes;
    END IF;

    IF given ? 'invisible' THEN
        DELETE FROM visibility AS old USING jsonb_to_recordset(given -> 'invisible')
            AS gone (namespace_id TEXT, run_id TEXT)
        WHERE old.namespace_id = gone.namespace_id AND old.run_id = gone.run_id;
    END IF;

    RETURN QUERY SELECT 'done', 0;
END
$$;

-- Takes an exclusive lock on the shard, so that no new branch shares the deleted events. False if the lease is lost.
CREATE FUNCTION history_delete_run(
    the_shard INTEGER, the_range BIGINT, the_namespace TEXT, the_workflow TEXT, the_run TEXT,
    trees TEXT[], branches TEXT[]
) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
DECLARE
    gone RECORD;
BEGIN
    PERFORM 1 FROM history_shards WHERE shard_id = the_shard AND range_id = the_range FOR UPDATE;
    IF NOT FOUND THEN
        RETURN FALSE;
    END IF;
    DELETE FROM history_runs
    WHERE shard_id = the_shard AND namespace_id = the_namespace AND workflow_id = the_workflow AND run_id = the_run;
    DELETE FROM history_currents
    WHERE shard_id = the_shard AND namespace_id = the_namespace AND workflow_id = the_workflow AND run_id = the_run;
    DELETE FROM visibility WHERE namespace_id = the_namespace AND run_id = the_run;
    INSERT INTO history_branches (tree_id, branch_id, ancestors, is_deleted)
    SELECT DISTINCT tree_id, branch_id, '[]'::JSONB, TRUE FROM unnest(trees, branches) AS given (tree_id, branch_id)
    ON CONFLICT (tree_id, branch_id) DO UPDATE SET is_deleted = TRUE;
    FOR gone IN
        SELECT deleted.tree_id, deleted.branch_id, (
            SELECT max(ancestor.end_event_id)
            FROM history_branches AS alive,
                jsonb_to_recordset(alive.ancestors) AS ancestor (branch_id TEXT, end_event_id BIGINT)
            WHERE alive.tree_id = deleted.tree_id AND NOT alive.is_deleted AND ancestor.branch_id = deleted.branch_id
        ) AS needed_to
        FROM history_branches AS deleted WHERE deleted.tree_id = ANY (trees) AND deleted.is_deleted
    LOOP
        DELETE FROM history_batches
        WHERE tree_id = gone.tree_id AND branch_id = gone.branch_id AND first_event_id >= coalesce(gone.needed_to, 0);
        IF gone.needed_to IS NULL THEN
            DELETE FROM history_branches WHERE tree_id = gone.tree_id AND branch_id = gone.branch_id;
        END IF;
    END LOOP;
    RETURN TRUE;
END
$$;

-- One row per shard that was ever owned. range_id is that of the present owner.
CREATE TABLE history_shards (
    shard_id INTEGER PRIMARY KEY,
    range_id INTEGER NOT NULL
) STRICT;

-- The completed level of each queue of a shard.
CREATE TABLE history_levels (
    shard_id   INTEGER NOT NULL,
    queue      TEXT    NOT NULL,
    fire_at_ns INTEGER NOT NULL,
    task_id    INTEGER NOT NULL,
    PRIMARY KEY (shard_id, queue)
) STRICT, WITHOUT ROWID;

-- The primary key is a sequence number, so that runs that are created and changed at about the same time are on the
-- same pages.
CREATE TABLE history_runs (
    run                INTEGER PRIMARY KEY,
    shard_id           INTEGER NOT NULL,
    namespace_id       TEXT    NOT NULL,
    workflow_id        TEXT    NOT NULL,
    run_id             TEXT    NOT NULL,
    db_version         INTEGER NOT NULL,
    next_event_id      INTEGER NOT NULL,
    status             INTEGER NOT NULL,
    last_write_version INTEGER NOT NULL,
    state              BLOB    NOT NULL,
    UNIQUE (shard_id, namespace_id, workflow_id, run_id)
) STRICT;

CREATE TABLE history_currents (
    shard_id           INTEGER NOT NULL,
    namespace_id       TEXT    NOT NULL,
    workflow_id        TEXT    NOT NULL,
    run_id             TEXT    NOT NULL,
    request_id         TEXT    NOT NULL,
    status             INTEGER NOT NULL,
    last_write_version INTEGER NOT NULL,
    PRIMARY KEY (shard_id, namespace_id, workflow_id)
) STRICT, WITHOUT ROWID;

-- ancestors: [[branch_id, end_event_id], ...]. A deleted branch stays while other branches share its events.
CREATE TABLE history_branches (
    branch     INTEGER PRIMARY KEY,
    tree_id    TEXT    NOT NULL,
    branch_id  TEXT    NOT NULL,
    ancestors  TEXT    NOT NULL DEFAULT '[]',
    is_deleted INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tree_id, branch_id)
) STRICT;

-- In the order in which a branch is read.
CREATE TABLE history_batches (
    branch         INTEGER NOT NULL,
    first_event_id INTEGER NOT NULL,
    last_event_id  INTEGER NOT NULL,
    version        INTEGER NOT NULL,
    transaction_id INTEGER NOT NULL,
    payload        BLOB    NOT NULL,
    PRIMARY KEY (branch, first_event_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE history_tasks (
    shard_id   INTEGER NOT NULL,
    queue      TEXT    NOT NULL,
    fire_at_ns INTEGER NOT NULL,
    task_id    INTEGER NOT NULL,
    payload    BLOB    NOT NULL,
    PRIMARY KEY (shard_id, queue, fire_at_ns, task_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE namespaces (
    namespace_id TEXT    NOT NULL PRIMARY KEY,
    name         TEXT    NOT NULL UNIQUE,
    payload      BLOB    NOT NULL,
    version      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE cluster_metadata (
    key     TEXT    NOT NULL PRIMARY KEY,
    payload BLOB    NOT NULL,
    version INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE visibility (
    row                    INTEGER PRIMARY KEY,
    namespace_id           TEXT    NOT NULL,
    run_id                 TEXT    NOT NULL,
    workflow_id            TEXT    NOT NULL,
    workflow_type          TEXT    NOT NULL,
    status                 INTEGER NOT NULL,
    start_time_ns          INTEGER NOT NULL,
    execution_time_ns      INTEGER NOT NULL,
    task_queue             TEXT    NOT NULL,
    close_time_ns          INTEGER,
    execution_duration_ns  INTEGER,
    history_length         INTEGER,
    history_size_bytes     INTEGER,
    state_transition_count INTEGER,
    parent_workflow_id     TEXT,
    parent_run_id          TEXT,
    root_workflow_id       TEXT,
    root_run_id            TEXT,
    memo                   BLOB    NOT NULL,
    search_attributes      TEXT    NOT NULL,
    UNIQUE (namespace_id, run_id)
) STRICT;

-- The default order of lists: open runs sort as if closed at the end of time.
CREATE INDEX visibility_latest
    ON visibility (namespace_id, coalesce(close_time_ns, 9223372036854775807), start_time_ns, run_id);
-- The same for one workflow id, to find its few runs without reading all others.
CREATE INDEX visibility_workflow ON visibility (
    namespace_id, workflow_id, coalesce(close_time_ns, 9223372036854775807), start_time_ns, run_id
);

-- Visibility rows that commits have written, and that are not in the table `visibility` yet: the last row of a run counts.
-- Without indexes, since a row of `visibility` has seven entries in indexes, and a short workflow writes it three times.
CREATE TABLE visibility_log (
    number                 INTEGER PRIMARY KEY,
    is_deleted             INTEGER NOT NULL,
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
    search_attributes      TEXT    NOT NULL
) STRICT;

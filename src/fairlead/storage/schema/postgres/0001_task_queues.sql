-- One row per queue. Every write to the queue locks this row, and requires its `range_id`.
-- `digest` is the SHA-256 of the queue's identity: a name may be longer than an index entry can be.
-- All text is compared by code points, as Python does.
CREATE TABLE queues (
    digest       BYTEA   NOT NULL PRIMARY KEY,
    number       BIGINT  NOT NULL GENERATED ALWAYS AS IDENTITY,
    namespace_id TEXT    NOT NULL COLLATE "C",
    name         TEXT    NOT NULL COLLATE "C",
    type         INTEGER NOT NULL,
    range_id     BIGINT  NOT NULL,
    -- The partition configuration: all columns are set, or none.
    config_version BIGINT,
    config_read    INTEGER,
    config_write   INTEGER
    -- Room for new row versions on the same page, so that updates don't change the indexes.
) WITH (fillfactor = 50);

-- The levels of each priority of a queue.
CREATE TABLE queue_levels (
    queue_number BIGINT  NOT NULL,
    priority     INTEGER NOT NULL,
    ack_pass     BIGINT  NOT NULL,
    ack_id       BIGINT  NOT NULL,
    max_pass     BIGINT  NOT NULL,
    max_id       BIGINT  NOT NULL,
    PRIMARY KEY (queue_number, priority)
) WITH (fillfactor = 50);

-- The backlogs, each in the order in which it is read.
-- A fairness key is stored as UTF-8 bytes: a key may contain NUL, which a text column can't hold.
CREATE TABLE tasks (
    queue_number BIGINT           NOT NULL,
    priority     INTEGER          NOT NULL,
    pass         BIGINT           NOT NULL,
    task_id      BIGINT           NOT NULL,
    fairness_key BYTEA            NOT NULL,
    weight       DOUBLE PRECISION NOT NULL,
    payload      BYTEA            NOT NULL,
    PRIMARY KEY (queue_number, priority, pass, task_id)
    -- Rows are short-lived: by default, autovacuum starts at 20% dead rows, too late for a large table.
) WITH (autovacuum_vacuum_scale_factor = 0.05);

-- The hosts of the cluster.
CREATE TABLE members (
    host      TEXT             NOT NULL COLLATE "C" PRIMARY KEY,
    expires_s DOUBLE PRECISION NOT NULL
);

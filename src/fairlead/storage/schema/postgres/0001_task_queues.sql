-- One row a queue. It is what every write to the queue locks, and `range_id` is what every write is conditional on.
-- `digest` is the SHA-256 of the queue's identity: a name may be longer than an index entry can be.
-- All text is compared by code points, as Python does.
CREATE TABLE queues (
    digest       BYTEA   NOT NULL PRIMARY KEY,
    number       BIGINT  NOT NULL GENERATED ALWAYS AS IDENTITY,
    namespace_id TEXT    NOT NULL COLLATE "C",
    name         TEXT    NOT NULL COLLATE "C",
    type         INTEGER NOT NULL,
    range_id     BIGINT  NOT NULL,
    -- The partition configuration: all of it is there, or none.
    config_version BIGINT,
    config_read    INTEGER,
    config_write   INTEGER
    -- Room for new versions of a row beside the old one, so that no index has to learn of them.
) WITH (fillfactor = 50);

-- How far each priority of a queue has come.
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
-- A fairness key is kept as its UTF-8 bytes, since a text can't hold the NUL that a key may have.
CREATE TABLE tasks (
    queue_number BIGINT           NOT NULL,
    priority     INTEGER          NOT NULL,
    pass         BIGINT           NOT NULL,
    task_id      BIGINT           NOT NULL,
    fairness_key BYTEA            NOT NULL,
    weight       DOUBLE PRECISION NOT NULL,
    payload      BYTEA            NOT NULL,
    PRIMARY KEY (queue_number, priority, pass, task_id)
    -- Rows come and go: a fifth of a large table is too many dead ones to wait for.
) WITH (autovacuum_vacuum_scale_factor = 0.05);

-- The hosts of the cluster.
CREATE TABLE members (
    host      TEXT             NOT NULL COLLATE "C" PRIMARY KEY,
    expires_s DOUBLE PRECISION NOT NULL
);

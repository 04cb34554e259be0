-- One row per partition that was ever owned. range_id is that of the present owner.
CREATE TABLE queues (
    queue          INTEGER PRIMARY KEY,
    namespace_id   TEXT    NOT NULL,
    name           TEXT    NOT NULL,
    type           INTEGER NOT NULL,
    range_id       INTEGER NOT NULL,
    config_version INTEGER,
    config_read    INTEGER,
    config_write   INTEGER,
    UNIQUE (namespace_id, name, type)
) STRICT;

-- The levels of each priority of a queue, and its number of tasks: `tasks` changes in the same transaction as the rows
-- that it counts, so that no query has to count a million rows.
CREATE TABLE levels (
    queue    INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    ack_pass INTEGER NOT NULL,
    ack_id   INTEGER NOT NULL,
    max_pass INTEGER NOT NULL,
    max_id   INTEGER NOT NULL,
    tasks    INTEGER NOT NULL,
    PRIMARY KEY (queue, priority)
) STRICT, WITHOUT ROWID;

-- WITHOUT ROWID: the table itself has the order in which it is read and deleted.
CREATE TABLE tasks (
    queue        INTEGER NOT NULL,
    priority     INTEGER NOT NULL,
    pass         INTEGER NOT NULL,
    id           INTEGER NOT NULL,
    fairness_key TEXT    NOT NULL,
    weight       REAL    NOT NULL,
    payload      BLOB    NOT NULL,
    PRIMARY KEY (queue, priority, pass, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE members (
    host      TEXT NOT NULL PRIMARY KEY,
    expires_s REAL NOT NULL
) STRICT, WITHOUT ROWID;

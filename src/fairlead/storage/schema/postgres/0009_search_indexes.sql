-- Lists of one status or one type, in the default order, and lists sorted by start: none reads the rows it leaves out.
CREATE INDEX visibility_status ON visibility (
    namespace_id, status, coalesce(close_time_ns, 9223372036854775807), start_time_ns, run_id
);
CREATE INDEX visibility_type ON visibility (
    namespace_id, workflow_type, coalesce(close_time_ns, 9223372036854775807), start_time_ns, run_id
);
CREATE INDEX visibility_start ON visibility (namespace_id, start_time_ns, run_id);

-- The number of rows of each status, so that no query has to count a million rows. Each connection has its own slot, so
-- that commits don't wait for each other's counts; the number is the sum of the slots, of which one may be negative.
CREATE TABLE visibility_counts (
    namespace_id TEXT    NOT NULL COLLATE "C",
    status       BIGINT  NOT NULL,
    slot         INTEGER NOT NULL,
    rows         BIGINT  NOT NULL,
    PRIMARY KEY (namespace_id, status, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

CREATE FUNCTION visibility_count_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO visibility_counts AS kept (namespace_id, status, slot, rows)
    SELECT namespace_id, status, pg_backend_pid() % 8192, count(*) FROM inserted GROUP BY namespace_id, status
    ON CONFLICT (namespace_id, status, slot) DO UPDATE SET rows = kept.rows + excluded.rows;
    RETURN NULL;
END
$$;

CREATE FUNCTION visibility_count_updated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO visibility_counts AS kept (namespace_id, status, slot, rows)
    SELECT namespace_id, status, pg_backend_pid() % 8192, sum(change)
    FROM (
        SELECT namespace_id, status, 1 AS change FROM after_update
        UNION ALL
        SELECT namespace_id, status, -1 FROM before_update
    ) AS changes
    GROUP BY namespace_id, status HAVING sum(change) <> 0
    ON CONFLICT (namespace_id, status, slot) DO UPDATE SET rows = kept.rows + excluded.rows;
    RETURN NULL;
END
$$;

CREATE FUNCTION visibility_count_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO visibility_counts AS kept (namespace_id, status, slot, rows)
    SELECT namespace_id, status, pg_backend_pid() % 8192, -count(*) FROM deleted GROUP BY namespace_id, status
    ON CONFLICT (namespace_id, status, slot) DO UPDATE SET rows = kept.rows + excluded.rows;
    RETURN NULL;
END
$$;

CREATE TRIGGER visibility_count_insert AFTER INSERT ON visibility REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION visibility_count_inserted();
CREATE TRIGGER visibility_count_update AFTER UPDATE ON visibility
    REFERENCING OLD TABLE AS before_update NEW TABLE AS after_update
    FOR EACH STATEMENT EXECUTE FUNCTION visibility_count_updated();
CREATE TRIGGER visibility_count_delete AFTER DELETE ON visibility REFERENCING OLD TABLE AS deleted
    FOR EACH STATEMENT EXECUTE FUNCTION visibility_count_deleted();

-- After the triggers, whose creation waits for all writers: nothing is counted twice or missed.
INSERT INTO visibility_counts (namespace_id, status, slot, rows)
SELECT namespace_id, status, 0, count(*) FROM visibility GROUP BY namespace_id, status
ON CONFLICT (namespace_id, status, slot) DO UPDATE SET rows = visibility_counts.rows + excluded.rows;

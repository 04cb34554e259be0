-- Lists of one status or one type, in the default order, and lists sorted by start: none reads the rows it leaves out.
CREATE INDEX visibility_status ON visibility (
    namespace_id, status, coalesce(close_time_ns, 9223372036854775807), start_time_ns, run_id
);
CREATE INDEX visibility_type ON visibility (
    namespace_id, workflow_type, coalesce(close_time_ns, 9223372036854775807), start_time_ns, run_id
);
CREATE INDEX visibility_start ON visibility (namespace_id, start_time_ns, run_id);

-- The values of search attributes, each in the default order of lists: one row per value, and per item of a list. Texts
-- are left out, since a query asks for their words.
CREATE TABLE visibility_values (
    in_namespace_id TEXT    NOT NULL,
    attribute       TEXT    NOT NULL,
    attribute_value ANY     NOT NULL,
    latest_ns       INTEGER NOT NULL,
    started_ns      INTEGER NOT NULL,
    of_run_id       TEXT    NOT NULL,
    of_row          INTEGER NOT NULL,
    PRIMARY KEY (in_namespace_id, attribute, attribute_value, latest_ns, started_ns, of_run_id)
) STRICT, WITHOUT ROWID;

INSERT INTO visibility_values
SELECT namespace_id, one.key, one.value, coalesce(close_time_ns, 9223372036854775807), start_time_ns, run_id, row
FROM visibility, json_each(search_attributes) AS one
WHERE one.type IN ('text', 'integer', 'real', 'true', 'false')
UNION
SELECT namespace_id, one.key, item.value, coalesce(close_time_ns, 9223372036854775807), start_time_ns, run_id, row
FROM visibility, json_each(search_attributes) AS one, json_each(one.value) AS item
WHERE one.type = 'array';

-- The number of rows of each status, so that no query has to count a million rows.
CREATE TABLE visibility_counts (
    namespace_id TEXT    NOT NULL,
    status       INTEGER NOT NULL,
    rows         INTEGER NOT NULL,
    PRIMARY KEY (namespace_id, status)
) STRICT, WITHOUT ROWID;

INSERT INTO visibility_counts SELECT namespace_id, status, count(*) FROM visibility GROUP BY namespace_id, status;

CREATE TRIGGER visibility_count_insert AFTER INSERT ON visibility BEGIN
    INSERT INTO visibility_counts VALUES (new.namespace_id, new.status, 1)
    ON CONFLICT (namespace_id, status) DO UPDATE SET rows = rows + 1;
END;

CREATE TRIGGER visibility_count_update AFTER UPDATE OF status ON visibility WHEN old.status <> new.status BEGIN
    UPDATE visibility_counts SET rows = rows - 1 WHERE namespace_id = old.namespace_id AND status = old.status;
    INSERT INTO visibility_counts VALUES (new.namespace_id, new.status, 1)
    ON CONFLICT (namespace_id, status) DO UPDATE SET rows = rows + 1;
END;

CREATE TRIGGER visibility_count_delete AFTER DELETE ON visibility BEGIN
    UPDATE visibility_counts SET rows = rows - 1 WHERE namespace_id = old.namespace_id AND status = old.status;
END;

CREATE TRIGGER visibility_values_insert AFTER INSERT ON visibility WHEN new.search_attributes <> '{}' BEGIN
    INSERT INTO visibility_values
    SELECT new.namespace_id, one.key, one.value,
        coalesce(new.close_time_ns, 9223372036854775807), new.start_time_ns, new.run_id, new.row
    FROM json_each(new.search_attributes) AS one
    WHERE one.type IN ('text', 'integer', 'real', 'true', 'false')
    UNION
    SELECT new.namespace_id, one.key, item.value,
        coalesce(new.close_time_ns, 9223372036854775807), new.start_time_ns, new.run_id, new.row
    FROM json_each(new.search_attributes) AS one, json_each(one.value) AS item
    WHERE one.type = 'array';
END;

-- Delete before the insert, in one trigger: two triggers have no certain order.
CREATE TRIGGER visibility_values_update AFTER UPDATE ON visibility
WHEN (old.search_attributes <> '{}' OR new.search_attributes <> '{}') AND (
    old.search_attributes <> new.search_attributes OR old.close_time_ns IS NOT new.close_time_ns
    OR old.start_time_ns <> new.start_time_ns
) BEGIN
    DELETE FROM visibility_values
    WHERE (in_namespace_id, attribute, attribute_value, latest_ns, started_ns, of_run_id) IN (
        SELECT old.namespace_id, one.key, one.value,
            coalesce(old.close_time_ns, 9223372036854775807), old.start_time_ns, old.run_id
        FROM json_each(old.search_attributes) AS one
        WHERE one.type IN ('text', 'integer', 'real', 'true', 'false')
        UNION
        SELECT old.namespace_id, one.key, item.value,
            coalesce(old.close_time_ns, 9223372036854775807), old.start_time_ns, old.run_id
        FROM json_each(old.search_attributes) AS one, json_each(one.value) AS item
        WHERE one.type = 'array'
    );
    INSERT INTO visibility_values
    SELECT new.namespace_id, one.key, one.value,
        coalesce(new.close_time_ns, 9223372036854775807), new.start_time_ns, new.run_id, new.row
    FROM json_each(new.search_attributes) AS one
    WHERE one.type IN ('text', 'integer', 'real', 'true', 'false')
    UNION
    SELECT new.namespace_id, one.key, item.value,
        coalesce(new.close_time_ns, 9223372036854775807), new.start_time_ns, new.run_id, new.row
    FROM json_each(new.search_attributes) AS one, json_each(one.value) AS item
    WHERE one.type = 'array';
END;

CREATE TRIGGER visibility_values_delete AFTER DELETE ON visibility WHEN old.search_attributes <> '{}' BEGIN
    DELETE FROM visibility_values
    WHERE (in_namespace_id, attribute, attribute_value, latest_ns, started_ns, of_run_id) IN (
        SELECT old.namespace_id, one.key, one.value,
            coalesce(old.close_time_ns, 9223372036854775807), old.start_time_ns, old.run_id
        FROM json_each(old.search_attributes) AS one
        WHERE one.type IN ('text', 'integer', 'real', 'true', 'false')
        UNION
        SELECT old.namespace_id, one.key, item.value,
            coalesce(old.close_time_ns, 9223372036854775807), old.start_time_ns, old.run_id
        FROM json_each(old.search_attributes) AS one, json_each(one.value) AS item
        WHERE one.type = 'array'
    );
END;

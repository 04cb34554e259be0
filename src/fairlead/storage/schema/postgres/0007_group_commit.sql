-- Many commits of many shards in one transaction: check all conditions first, then write all rows or none.
-- Arguments are columns: the n-th elements of the arrays of a table are its n-th row. No two commits of a call write the
-- same run, current run, visibility row or tree.
-- The result is one row for each condition that is not met, with the number of its fence or row, from 1: then nothing
-- was written. 'busy' is a row that another transaction has locked; `waits` waits for it instead. Without such a row all
-- is written, and 'completed' tells how many tasks each completion deleted.
-- As in history_commit, each statement sees what was committed before it began: those after the fences see all earlier
-- commits. A subquery in LATERAL with its own lock or LIMIT makes the planner look up each row by its key, however many
-- rows the tables seem to have.
CREATE OR REPLACE FUNCTION history_write(
    waits BOOLEAN,
    -- Fences of commits, and of shards with completions: these exclude all other writes.
    shared_shards INTEGER[], shared_ranges BIGINT[], locked_shards INTEGER[], locked_ranges BIGINT[],
    run_shards INTEGER[], run_namespaces TEXT[], run_workflows TEXT[], run_ids TEXT[], run_expected BIGINT[],
    run_next_events BIGINT[], run_statuses INTEGER[], run_versions BIGINT[], run_states BYTEA[],
    -- Conditions: 0 absent, 1 is the expected run, 2 not open.
    current_shards INTEGER[], current_namespaces TEXT[], current_workflows TEXT[], current_runs TEXT[],
    current_requests TEXT[], current_statuses INTEGER[], current_versions BIGINT[], current_conditions INTEGER[],
    current_expected TEXT[],
    batch_trees TEXT[], batch_branches TEXT[], batch_firsts BIGINT[], batch_lasts BIGINT[], batch_versions BIGINT[],
    batch_transactions BIGINT[], batch_payloads BYTEA[],
    task_shards INTEGER[], task_queues TEXT[], task_fire_at_ns BIGINT[], task_ids BIGINT[], task_payloads BYTEA[],
    seen_namespaces TEXT[], seen_runs TEXT[], seen_workflows TEXT[], seen_types TEXT[], seen_statuses BIGINT[],
    seen_starts BIGINT[], seen_executions BIGINT[], seen_task_queues TEXT[], seen_closes BIGINT[],
    seen_durations BIGINT[], seen_lengths BIGINT[], seen_sizes BIGINT[], seen_transitions BIGINT[],
    seen_parent_workflows TEXT[], seen_parent_runs TEXT[], seen_root_workflows TEXT[], seen_root_runs TEXT[],
    seen_memos BYTEA[], seen_attributes TEXT[],
    unseen_namespaces TEXT[], unseen_runs TEXT[],
    branch_trees TEXT[], branch_ids TEXT[], branch_ancestors TEXT[],
    done_shards INTEGER[], done_queues TEXT[], done_fire_at_ns BIGINT[], done_ids BIGINT[], done_limits INTEGER[]
) RETURNS TABLE (outcome TEXT, place BIGINT, tasks BIGINT) LANGUAGE plpgsql AS $$
DECLARE
    is_refused BOOLEAN := FALSE;
BEGIN
    IF waits THEN
        PERFORM 1 FROM unnest(shared_shards) AS new (shard_id),
            LATERAL (SELECT 1 FROM history_shards AS old WHERE old.shard_id = new.shard_id FOR SHARE) AS locked;
        PERFORM 1 FROM unnest(locked_shards) AS new (shard_id),
            LATERAL (SELECT 1 FROM history_shards AS old WHERE old.shard_id = new.shard_id FOR UPDATE) AS locked;
        PERFORM 1
        FROM unnest(current_shards, current_namespaces, current_workflows) AS new (shard_id, namespace_id, workflow_id),
            LATERAL (
                SELECT 1 FROM history_currents AS old
                WHERE old.shard_id = new.shard_id AND old.namespace_id = new.namespace_id
                    AND old.workflow_id = new.workflow_id
                FOR UPDATE
            ) AS locked;
        PERFORM 1
        FROM unnest(run_shards, run_namespaces, run_workflows, run_ids)
                AS new (shard_id, namespace_id, workflow_id, run_id),
            LATERAL (
                SELECT 1 FROM history_runs AS old
                WHERE old.shard_id = new.shard_id AND old.namespace_id = new.namespace_id
                    AND old.workflow_id = new.workflow_id AND old.run_id = new.run_id
                FOR UPDATE
            ) AS locked;
    END IF;

    IF cardinality(shared_shards) > 0 THEN
        RETURN QUERY
            SELECT CASE WHEN old.range_id IS NULL AND new.range_id = (
                    SELECT seen.range_id FROM history_shards AS seen WHERE seen.shard_id = new.shard_id
                ) THEN 'busy shared' ELSE 'shared' END, new.place, 0::BIGINT
            FROM unnest(shared_shards, shared_ranges) WITH ORDINALITY AS new (shard_id, range_id, place)
            LEFT JOIN LATERAL (
                SELECT shard.range_id FROM history_shards AS shard
                WHERE shard.shard_id = new.shard_id FOR SHARE SKIP LOCKED
            ) AS old ON TRUE
            WHERE old.range_id IS DISTINCT FROM new.range_id;
        is_refused := is_refused OR FOUND;
    END IF;
    IF cardinality(locked_shards) > 0 THEN
        RETURN QUERY
            SELECT CASE WHEN old.range_id IS NULL AND new.range_id = (
                    SELECT seen.range_id FROM history_shards AS seen WHERE seen.shard_id = new.shard_id
                ) THEN 'busy locked' ELSE 'locked' END, new.place, 0::BIGINT
            FROM unnest(locked_shards, locked_ranges) WITH ORDINALITY AS new (shard_id, range_id, place)
            LEFT JOIN LATERAL (
                SELECT shard.range_id FROM history_shards AS shard
                WHERE shard.shard_id = new.shard_id FOR UPDATE SKIP LOCKED
            ) AS old ON TRUE
            WHERE old.range_id IS DISTINCT FROM new.range_id;
        is_refused := is_refused OR FOUND;
    END IF;

    IF cardinality(current_shards) > 0 THEN
        RETURN QUERY
            SELECT CASE WHEN old.run_id IS NULL AND (
                    SELECT TRUE FROM history_currents AS seen
                    WHERE seen.shard_id = new.shard_id AND seen.namespace_id = new.namespace_id
                        AND seen.workflow_id = new.workflow_id
                ) THEN 'busy current' ELSE 'current' END, new.place, 0::BIGINT
            FROM unnest(
                    current_shards, current_namespaces, current_workflows, current_conditions, current_expected
                ) WITH ORDINALITY AS new (shard_id, namespace_id, workflow_id, condition, expected_run_id, place)
            LEFT JOIN LATERAL (
                SELECT present.run_id, present.status FROM history_currents AS present
                WHERE present.shard_id = new.shard_id AND present.namespace_id = new.namespace_id
                    AND present.workflow_id = new.workflow_id
                FOR UPDATE SKIP LOCKED
            ) AS old ON TRUE
            WHERE NOT CASE
                -- A row that is there but locked shows nothing of itself here.
                WHEN old.run_id IS NULL AND (
                    SELECT TRUE FROM history_currents AS seen
                    WHERE seen.shard_id = new.shard_id AND seen.namespace_id = new.namespace_id
                        AND seen.workflow_id = new.workflow_id
                ) THEN FALSE
                WHEN new.condition = 0 THEN old.run_id IS NULL
                WHEN new.condition = 1 THEN old.run_id IS NOT DISTINCT FROM new.expected_run_id
                ELSE old.run_id IS NULL OR old.status NOT IN (1, 8)
            END;
        is_refused := is_refused OR FOUND;
    END IF;

    IF cardinality(run_shards) > 0 THEN
        RETURN QUERY
            SELECT CASE WHEN old.db_version IS NULL AND new.expected = (
                    SELECT seen.db_version FROM history_runs AS seen
                    WHERE seen.shard_id = new.shard_id AND seen.namespace_id = new.namespace_id
                        AND seen.workflow_id = new.workflow_id AND seen.run_id = new.run_id
                ) THEN 'busy run' ELSE 'run' END, new.place, 0::BIGINT
            FROM unnest(run_shards, run_namespaces, run_workflows, run_ids, run_expected)
                WITH ORDINALITY AS new (shard_id, namespace_id, workflow_id, run_id, expected, place)
            LEFT JOIN LATERAL (
                SELECT present.db_version FROM history_runs AS present
                WHERE present.shard_id = new.shard_id AND present.namespace_id = new.namespace_id
                    AND present.workflow_id = new.workflow_id AND present.run_id = new.run_id
                FOR UPDATE SKIP LOCKED
            ) AS old ON TRUE
            WHERE old.db_version IS DISTINCT FROM new.expected;
        is_refused := is_refused OR FOUND;
    END IF;

    IF cardinality(task_shards) > 0 THEN
        RETURN QUERY
            SELECT 'task', new.place, 0::BIGINT
            FROM unnest(task_shards, task_queues, task_fire_at_ns, task_ids)
                WITH ORDINALITY AS new (shard_id, queue, fire_at_ns, task_id, place)
            WHERE (
                SELECT (new.fire_at_ns, new.task_id) <= (level.fire_at_ns, level.task_id) FROM history_levels AS level
                WHERE level.shard_id = new.shard_id AND level.queue = new.queue
            );
        is_refused := is_refused OR FOUND;
    END IF;

    IF cardinality(branch_trees) > 0 THEN
        RETURN QUERY
            SELECT 'branch', new.place, 0::BIGINT
            FROM unnest(branch_trees, branch_ancestors) WITH ORDINALITY AS new (tree_id, ancestors, place),
                jsonb_to_recordset(new.ancestors::JSONB) AS ancestor (branch_id TEXT, end_event_id BIGINT)
            WHERE ancestor.end_event_id - 1 IS DISTINCT FROM (
                SELECT last_event_id FROM history_batches AS batch
                WHERE batch.tree_id = new.tree_id AND batch.branch_id = ancestor.branch_id
                    AND batch.first_event_id < ancestor.end_event_id
                ORDER BY first_event_id DESC LIMIT 1
            );
        is_refused := is_refused OR FOUND;
    END IF;

    IF is_refused THEN
        RETURN;
    END IF;

    IF cardinality(branch_trees) > 0 THEN
        INSERT INTO history_branches (tree_id, branch_id, ancestors, is_deleted)
        SELECT new.tree_id, new.branch_id, new.ancestors::JSONB, FALSE
        FROM unnest(branch_trees, branch_ids, branch_ancestors) AS new (tree_id, branch_id, ancestors)
        ON CONFLICT (tree_id, branch_id) DO UPDATE SET ancestors = excluded.ancestors, is_deleted = FALSE;
    END IF;

    IF cardinality(run_shards) > 0 THEN
        -- The rows with an expected version are there, and locked.
        INSERT INTO history_runs AS old (
            shard_id, namespace_id, workflow_id, run_id, db_version, next_event_id, status, last_write_version, state
        )
        SELECT new.* FROM unnest(
            run_shards, run_namespaces, run_workflows, run_ids, run_expected, run_next_events, run_statuses,
            run_versions, run_states
        ) AS new (
            shard_id, namespace_id, workflow_id, run_id, expected, next_event_id, status, last_write_version, state
        )
        WHERE new.expected IS NOT NULL
        ON CONFLICT (shard_id, namespace_id, workflow_id, run_id) DO UPDATE SET
            db_version = old.db_version + 1, next_event_id = excluded.next_event_id, status = excluded.status,
            last_write_version = excluded.last_write_version, state = excluded.state;
        -- Not "on conflict": a run that a concurrent commit created since the check must not be overwritten.
        INSERT INTO history_runs (
            shard_id, namespace_id, workflow_id, run_id, db_version, next_event_id, status, last_write_version, state
        )
        SELECT new.shard_id, new.namespace_id, new.workflow_id, new.run_id, 1, new.next_event_id, new.status,
            new.last_write_version, new.state
        FROM unnest(
            run_shards, run_namespaces, run_workflows, run_ids, run_expected, run_next_events, run_statuses,
            run_versions, run_states
        ) AS new (
            shard_id, namespace_id, workflow_id, run_id, expected, next_event_id, status, last_write_version, state
        )
        WHERE new.expected IS NULL;
    END IF;

    IF cardinality(current_shards) > 0 THEN
        INSERT INTO history_currents (
            shard_id, namespace_id, workflow_id, run_id, request_id, status, last_write_version
        )
        SELECT new.* FROM unnest(
            current_shards, current_namespaces, current_workflows, current_runs, current_requests, current_statuses,
            current_versions
        ) AS new (shard_id, namespace_id, workflow_id, run_id, request_id, status, last_write_version)
        WHERE (
            SELECT TRUE FROM history_currents AS seen
            WHERE seen.shard_id = new.shard_id AND seen.namespace_id = new.namespace_id
                AND seen.workflow_id = new.workflow_id
        )
        ON CONFLICT (shard_id, namespace_id, workflow_id) DO UPDATE SET
            run_id = excluded.run_id, request_id = excluded.request_id, status = excluded.status,
            last_write_version = excluded.last_write_version;
        -- Not "on conflict", as above.
        INSERT INTO history_currents (
            shard_id, namespace_id, workflow_id, run_id, request_id, status, last_write_version
        )
        SELECT new.* FROM unnest(
            current_shards, current_namespaces, current_workflows, current_runs, current_requests, current_statuses,
            current_versions
        ) AS new (shard_id, namespace_id, workflow_id, run_id, request_id, status, last_write_version)
        WHERE (
            SELECT TRUE FROM history_currents AS seen
            WHERE seen.shard_id = new.shard_id AND seen.namespace_id = new.namespace_id
                AND seen.workflow_id = new.workflow_id
        ) IS NULL;
    END IF;

    IF cardinality(batch_trees) > 0 THEN
        INSERT INTO history_batches AS old (
            tree_id, branch_id, first_event_id, last_event_id, version, transaction_id, payload
        )
        SELECT new.* FROM unnest(
            batch_trees, batch_branches, batch_firsts, batch_lasts, batch_versions, batch_transactions, batch_payloads
        ) AS new
        ON CONFLICT (tree_id, branch_id, first_event_id) DO UPDATE SET
            last_event_id = excluded.last_event_id, version = excluded.version,
            transaction_id = excluded.transaction_id, payload = excluded.payload
        WHERE excluded.transaction_id > old.transaction_id;
    END IF;

    IF cardinality(task_shards) > 0 THEN
        INSERT INTO history_tasks (shard_id, queue, fire_at_ns, task_id, payload)
        SELECT new.* FROM unnest(task_shards, task_queues, task_fire_at_ns, task_ids, task_payloads) AS new
        ON CONFLICT (shard_id, queue, fire_at_ns, task_id) DO UPDATE SET payload = excluded.payload;
    END IF;

    IF cardinality(seen_runs) > 0 THEN
        INSERT INTO visibility (
            namespace_id, run_id, workflow_id, workflow_type, status, start_time_ns, execution_time_ns, task_queue,
            close_time_ns, execution_duration_ns, history_length, history_size_bytes, state_transition_count,
            parent_workflow_id, parent_run_id, root_workflow_id, root_run_id, memo, search_attributes
        )
        SELECT new.namespace_id, new.run_id, new.workflow_id, new.workflow_type, new.status, new.start_time_ns,
            new.execution_time_ns, new.task_queue, new.close_time_ns, new.execution_duration_ns, new.history_length,
            new.history_size_bytes, new.state_transition_count, new.parent_workflow_id, new.parent_run_id,
            new.root_workflow_id, new.root_run_id, new.memo, new.search_attributes::JSONB
        FROM unnest(
            seen_namespaces, seen_runs, seen_workflows, seen_types, seen_statuses, seen_starts, seen_executions,
            seen_task_queues, seen_closes, seen_durations, seen_lengths, seen_sizes, seen_transitions,
            seen_parent_workflows, seen_parent_runs, seen_root_workflows, seen_root_runs, seen_memos, seen_attributes
        ) AS new (
            namespace_id, run_id, workflow_id, workflow_type, status, start_time_ns, execution_time_ns, task_queue,
            close_time_ns, execution_duration_ns, history_length, history_size_bytes, state_transition_count,
            parent_workflow_id, parent_run_id, root_workflow_id, root_run_id, memo, search_attributes
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

    IF cardinality(unseen_runs) > 0 THEN
        DELETE FROM visibility WHERE ctid = ANY (ARRAY(
            SELECT gone.place FROM unnest(unseen_namespaces, unseen_runs) AS new (namespace_id, run_id),
                LATERAL (
                    SELECT old.ctid AS place FROM visibility AS old
                    WHERE old.namespace_id = new.namespace_id AND old.run_id = new.run_id LIMIT 1
                ) AS gone
        ));
    END IF;

    IF cardinality(done_shards) > 0 THEN
        INSERT INTO history_levels AS old (shard_id, queue, fire_at_ns, task_id)
        SELECT new.* FROM unnest(done_shards, done_queues, done_fire_at_ns, done_ids) AS new
        ON CONFLICT (shard_id, queue) DO UPDATE SET fire_at_ns = excluded.fire_at_ns, task_id = excluded.task_id
        WHERE (excluded.fire_at_ns, excluded.task_id) > (old.fire_at_ns, old.task_id);
        RETURN QUERY
            WITH deleted AS (
                DELETE FROM history_tasks WHERE ctid = ANY (ARRAY(
                    SELECT gone.place
                    FROM unnest(done_shards, done_queues, done_fire_at_ns, done_ids, done_limits)
                            AS new (shard_id, queue, fire_at_ns, task_id, tasks_max),
                        LATERAL (
                            SELECT old.ctid AS place FROM history_tasks AS old
                            WHERE old.shard_id = new.shard_id AND old.queue = new.queue
                                AND (old.fire_at_ns, old.task_id) <= (new.fire_at_ns, new.task_id)
                            ORDER BY old.fire_at_ns, old.task_id LIMIT new.tasks_max
                        ) AS gone
                ))
                RETURNING shard_id, queue
            ), counted AS MATERIALIZED (
                SELECT deleted.shard_id, deleted.queue, count(*) AS tasks FROM deleted
                GROUP BY deleted.shard_id, deleted.queue
            )
            SELECT 'completed', new.place, coalesce((
                SELECT counted.tasks FROM counted
                WHERE counted.shard_id = new.shard_id AND counted.queue = new.queue
            ), 0)
            FROM unnest(done_shards, done_queues) WITH ORDINALITY AS new (shard_id, queue, place);
    END IF;
END
$$;

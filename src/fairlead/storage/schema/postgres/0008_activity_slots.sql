-- Activities that run in task queues with a limit on running activities, one row for each started attempt.
CREATE TABLE activity_slots (
    token TEXT COLLATE "C" PRIMARY KEY,
    shard_id INTEGER NOT NULL,
    queue_namespace_id TEXT COLLATE "C" NOT NULL,
    task_queue TEXT COLLATE "C" NOT NULL,
    fairness_key TEXT COLLATE "C" NOT NULL,
    namespace_id TEXT COLLATE "C" NOT NULL,
    workflow_id TEXT COLLATE "C" NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL,
    event_id BIGINT NOT NULL
);
CREATE INDEX activity_slots_by_key ON activity_slots (queue_namespace_id, task_queue, fairness_key);
CREATE INDEX activity_slots_by_shard ON activity_slots (shard_id);

-- Take a slot for a shard's owner. Returns 'taken', 'key' or 'queue' for the limit that is reached, or 'lost'.
-- The advisory lock makes takers of one key, or of one task queue if that is limited, wait for each other; each
-- statement after it sees the slots that others have taken before.
CREATE FUNCTION take_activity_slot(
    owner_range_id BIGINT, key_max INTEGER, queue_max INTEGER, new_token TEXT, new_shard_id INTEGER,
    new_queue_namespace_id TEXT, new_task_queue TEXT, new_fairness_key TEXT, new_namespace_id TEXT,
    new_workflow_id TEXT, new_run_id TEXT, new_event_id BIGINT
) RETURNS TEXT LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(
        concat_ws(E'\x1f', 'activity_slots', new_queue_namespace_id, new_task_queue,
            CASE WHEN queue_max > 0 THEN NULL ELSE new_fairness_key END), 0
    ));
    PERFORM 1 FROM history_shards WHERE shard_id = new_shard_id AND range_id = owner_range_id FOR SHARE;
    IF NOT FOUND THEN
        RETURN 'lost';
    END IF;
    IF EXISTS (SELECT 1 FROM activity_slots WHERE token = new_token) THEN
        RETURN 'taken';
    END IF;
    IF key_max > 0 AND key_max <= (
        SELECT count(*) FROM activity_slots
        WHERE queue_namespace_id = new_queue_namespace_id AND task_queue = new_task_queue
            AND fairness_key = new_fairness_key
    ) THEN
        RETURN 'key';
    END IF;
    IF queue_max > 0 AND queue_max <= (
        SELECT count(*) FROM activity_slots
        WHERE queue_namespace_id = new_queue_namespace_id AND task_queue = new_task_queue
    ) THEN
        RETURN 'queue';
    END IF;
    INSERT INTO activity_slots VALUES (
        new_token, new_shard_id, new_queue_namespace_id, new_task_queue, new_fairness_key, new_namespace_id,
        new_workflow_id, new_run_id, new_event_id
    );
    RETURN 'taken';
END
$$;

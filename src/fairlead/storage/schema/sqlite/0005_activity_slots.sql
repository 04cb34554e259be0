-- Activities that run in task queues with a limit on running activities, one row for each started attempt.
CREATE TABLE activity_slots (
    token TEXT PRIMARY KEY,
    shard_id INTEGER NOT NULL,
    queue_namespace_id TEXT NOT NULL,
    task_queue TEXT NOT NULL,
    fairness_key TEXT NOT NULL,
    namespace_id TEXT NOT NULL,
    workflow_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    event_id INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX activity_slots_by_key ON activity_slots (queue_namespace_id, task_queue, fairness_key);
CREATE INDEX activity_slots_by_shard ON activity_slots (shard_id);

-- The dispatch rules of a task queue, as set by UpdateTaskQueueConfig; only root partitions have them.
ALTER TABLE queues ADD COLUMN rules bytea;

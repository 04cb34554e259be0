-- The rules by which a task list dispatches, as calls have set them; only a root has any.
ALTER TABLE queues ADD COLUMN rules BLOB;

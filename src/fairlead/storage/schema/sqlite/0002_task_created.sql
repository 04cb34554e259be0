-- When each task was first added, by the wall clock: how old a backlog is. 0 for those that were here before.
ALTER TABLE tasks ADD COLUMN created_s REAL NOT NULL DEFAULT 0;

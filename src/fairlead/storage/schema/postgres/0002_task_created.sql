-- Wall clock time at which each task was first added, for the age of a backlog; 0 for older rows.
ALTER TABLE tasks ADD COLUMN created_s DOUBLE PRECISION NOT NULL DEFAULT 0;

"""One shard: its ownership, commits, cached runs, task queues and stream of committed events."""

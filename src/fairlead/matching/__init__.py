"""The matching service: matches tasks with polls in each partition, by priority and fair level, within rate limits."""

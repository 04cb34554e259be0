"""Worker deployments in the history service: moves pending tasks when their target version changes."""

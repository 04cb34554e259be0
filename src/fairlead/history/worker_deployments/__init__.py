"""Worker deployments in the history service: moves pending tasks when their target versions change."""

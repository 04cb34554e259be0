"""The path of a call through the frontend: method tables, redirection between clusters, deadlines, error details."""

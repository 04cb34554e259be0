"""Static configuration: read once, when the process starts."""

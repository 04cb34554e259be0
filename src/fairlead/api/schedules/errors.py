class BadSpec(ValueError):
    """A spec is invalid; the message says why."""

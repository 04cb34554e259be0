class BadSpec(ValueError):
    """A spec that no time can be computed from; says what is wrong in it."""

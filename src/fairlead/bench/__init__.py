"""The load generator of `fairlead bench`, and the scenarios of Cadence's matching simulation."""

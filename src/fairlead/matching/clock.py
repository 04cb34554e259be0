"""The type of the clock that matching's parts get, so that tests can set the time."""

from collections.abc import Callable

# Returns seconds since the epoch.
Clock = Callable[[], float]

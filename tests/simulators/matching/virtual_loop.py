"""The loop on virtual time, which `fairlead simulate scale` runs on as well."""

from fairlead.simulations.virtual_loop import (
    NOBODY,
    STEPS_MAX,
    Deadlock,
    Process,
    TooManySteps,
    VirtualLoop,
    current_process,
    run,
)

__all__ = [
    "NOBODY",
    "STEPS_MAX",
    "Deadlock",
    "Process",
    "TooManySteps",
    "VirtualLoop",
    "current_process",
    "run",
]

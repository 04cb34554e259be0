"""`fairlead admin`: looks at a running cluster, and changes what is changed by hand."""

# Each module adds its own commands to the group.
from fairlead.cli.admin import (
    dead_letters,
    failover,
    fairness,
    histories,
    repair,
    replication,
    ring,
    scaler,
    tasklist,
    update,
)
from fairlead.cli.admin.command import admin

__all__ = [
    "admin",
    "dead_letters",
    "failover",
    "fairness",
    "histories",
    "repair",
    "replication",
    "ring",
    "scaler",
    "tasklist",
    "update",
]

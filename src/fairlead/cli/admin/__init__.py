"""`fairlead admin`: looks at a running cluster, and changes what is changed by hand."""

# Each module adds its own commands to the group, which loads some more when it is asked for a command.
from fairlead.cli.admin import failover, fairness, ring, scaler, tasklist, update
from fairlead.cli.admin.command import admin

__all__ = ["admin", "failover", "fairness", "ring", "scaler", "tasklist", "update"]

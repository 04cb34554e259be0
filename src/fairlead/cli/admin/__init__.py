"""`fairlead admin`: looks at a running cluster, and changes what is changed by hand."""

# Each module adds its own commands to the group.
from fairlead.cli.admin import fairness, ring, scaler, tasklist, update
from fairlead.cli.admin.command import admin

__all__ = ["admin", "fairness", "ring", "scaler", "tasklist", "update"]

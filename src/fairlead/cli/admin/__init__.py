"""`fairlead admin`: inspects and administers a running cluster."""

# Each module adds its commands to the group; the group itself loads some more modules on first use.
from fairlead.cli.admin import failover, fairness, ring, scaler, tasklist, tasks, update
from fairlead.cli.admin.command import admin

__all__ = ["admin", "failover", "fairness", "ring", "scaler", "tasklist", "tasks", "update"]

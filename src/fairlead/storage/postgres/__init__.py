"""The storage contracts on PostgreSQL, for clusters of several hosts: acknowledged means committed."""

from fairlead.storage.postgres.store import PostgresStore

__all__ = ["PostgresStore"]

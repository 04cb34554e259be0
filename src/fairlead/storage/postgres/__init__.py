"""The storage contracts on PostgreSQL, for clusters of several hosts. Acknowledged writes are committed."""

from fairlead.storage.postgres.store import PostgresStore

__all__ = ["PostgresStore"]

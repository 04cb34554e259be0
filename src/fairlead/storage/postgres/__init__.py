"""The contract on PostgreSQL, for many hosts: acknowledged means committed."""

from fairlead.storage.postgres.store import PostgresStore

__all__ = ["PostgresStore"]

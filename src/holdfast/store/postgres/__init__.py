"""The store for many processes and machines: a schema in a PostgreSQL database."""

from holdfast.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]

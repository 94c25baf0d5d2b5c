"""Storage of runs: the store protocol, and its implementations for SQLite and PostgreSQL."""

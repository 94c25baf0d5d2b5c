"""Benchmarks of Holdfast on SQLite and PostgreSQL, beside DBOS and the limit of the disk. Run `python -m bench`."""

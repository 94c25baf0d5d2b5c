"""Benchmarks of Holdfast on SQLite, beside DBOS and beside the limit of the disk. Run `python -m bench`."""

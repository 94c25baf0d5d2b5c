"""Observers of the engine: metrics and traces, and the fields of log lines. The engine does not import this package."""

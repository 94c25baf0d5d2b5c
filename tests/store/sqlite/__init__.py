"""Tests of behaviour that only the SQLite store has: its file, its threads, its errors."""

"""Tests of behaviour that only the PostgreSQL store has."""

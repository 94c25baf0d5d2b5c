"""Replayed code: workflow functions and steps on a deterministic event loop. No I/O here."""

"""Real worker processes and a real PostgreSQL, with injected faults.

``server`` is a PostgreSQL that can be stopped in every way. ``proxy`` stands between the server and its clients, and
cuts, delays or drops their messages, which ``wire_protocol`` parses. ``processes`` are the workers, ``workload`` is
what they run, and ``checker`` is what must hold meanwhile and afterwards, queried through ``database_probe``.
``faults`` makes a plan from a seed, ``injection`` carries it out, and ``storm`` runs all of it (``python -m
tests.chaos``). ``environment`` is the set-up of the tests that provoke one fault each.
"""

"""Real worker processes, a real PostgreSQL, and everything between them that can break.

``server`` is a PostgreSQL that may be stopped in every way, ``wire`` and ``proxy`` stand between it and its clients and
cut, delay or swallow what they say, ``processes`` are the workers, ``workload`` is what they run, ``checker`` what must
be true meanwhile and afterwards. ``faults`` makes a plan from a seed and ``storm`` carries it out (``python -m
tests.chaos``). ``scene`` is the small stage of the tests that provoke one fault each.
"""

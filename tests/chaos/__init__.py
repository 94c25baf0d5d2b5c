"""Real worker processes, a real PostgreSQL, and everything between them that can break.

``server`` is a PostgreSQL that may be stopped in every way, ``wire`` and ``proxy`` stand between it and its clients and
cut, delay or swallow what they say, ``processes`` are the workers, ``workload`` is what they run, ``checker`` what must
be true meanwhile and afterwards, asked by way of ``witness``. ``faults`` makes a plan from a seed, ``injection``
carries it out, and ``storm`` is the whole (``python -m tests.chaos``). ``scene`` is the small stage of the tests that
provoke one fault each.
"""

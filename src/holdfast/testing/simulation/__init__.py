"""Deterministic simulation: whole workers, clients and the real SQL in one seeded loop with virtual time, under faults.

Example::

    report = run_seed(7)
    assert not report.failures, report.failures

``python -m holdfast.testing.simulation --seeds 1000`` runs many, and tells the story of the first that fails. Read
``run.py`` first, then ``world.py``. What a seed does: a few workers and clients (``node.py``), each a whole app with
ports of its own (``ports.py``, ``node_store.py``), run random programs (``programs.py``, ``code.py``) that clients ask
for (``workload.py``), on one database (``database.py``), in one loop (``loop.py``), while things go wrong
(``faults.py``); what must hold is looked at on the way and at the end (``database.py``, ``checker.py``).
"""

from holdfast.testing.simulation.run import Report, run_seed

__all__ = ["Report", "run_seed"]

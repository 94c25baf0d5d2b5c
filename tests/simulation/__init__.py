"""The engine's simulation: whole workers and clients run random programs under faults, and every promise is checked.

``python -m tests.simulation --seeds 1000`` runs seeds. Read ``run.py`` first, then ``system/world.py``.

- ``system/``: the processes of a seed (``world.py``, ``node.py``), the clients and their requests (``clients.py``,
  ``workload.py``), and the faults (``faults.py``, ``fault_injector.py``, ``step_observer.py``).
- ``features/``: the table of features from which programs and requests are generated.
- ``programs/``: the workflows, chains and graphs that run, and the results that are possible for each.
- ``checks/``: the checks of the promises, at every write (``database.py``) and at the end (``final_checks.py``).
- ``planted.py``: bugs that the simulation must find.

The loop, the shared database and the connections to it are those of ``holdfast.testing.simulation``.
"""

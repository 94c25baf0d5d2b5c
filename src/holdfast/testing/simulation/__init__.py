"""Deterministic simulation: whole workers and clients, with the real SQL, in virtual time and under faults.

``simulate.py`` is the entry for users' workflows; read it first, then ``seed_run.py``. A seed run executes the scenario
once: the app's workers (``app_process.py``) and the client that sends events (``external_client.py``) are processes of
one loop (``loop.py``, ``scenario_loop.py``). Faults are injected around each step call (``step_calls.py``,
``fault_plan.py``). ``comparison.py`` compares the result with the baseline, the run without faults.

The lower part has no knowledge of scenarios, and is also used by the simulation that tests the engine itself: the loop,
the shared database (``database.py``) with the checks of each write (``row_triggers.py``, ``fence_watch.py``,
``progress_watch.py``), a process's connection to it (``node_store.py``), the other ports (``ports.py``), faults by
place (``faults.py``, ``streams.py``) and the minimization of failures (``minimize.py``).
"""

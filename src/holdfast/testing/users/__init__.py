"""Simulation of users' own workflows in virtual time, under faults.

Read ``simulate.py`` first, then ``seed_run.py``. A seed run executes the scenario once: the app's workers
(``process.py``) and the client that sends events (``external_client.py``) are processes of the simulated loop, the SQL
is real, and faults are injected around each step call (``step_calls.py``, ``fault_plan.py``). ``comparison.py``
compares the result with the baseline, the run without faults.
"""

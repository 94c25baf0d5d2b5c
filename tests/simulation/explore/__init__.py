"""Exhaustive exploration of small scenarios: all orders of store calls, and one fault at every point.

``make explore`` runs it. A *schedule* is a list of actions: which pending store call is executed next, when a request
of a client arrives, when time moves on, and where the one fault happens. Read ``scenarios.py`` first, then
``actions.py``, then ``search.py``.

- ``scenarios.py``: the scenarios, each a few runs and the requests that race with them.
- ``actions.py``: the actions that are possible in a state, and their execution (``loop.py``, ``calls.py``).
- ``state.py``: the hash of a state.
- ``search.py``: the search over schedules, with state hashing and sleep sets.
- ``system.py``: the processes of one schedule. Programs and checks are those of the simulation.
"""

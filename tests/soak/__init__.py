"""A mixed load with faults for minutes: memory, connections, tables and WAL stay flat (``python -m tests.soak``).

``workload`` has the workflows, ``load`` the client that starts and controls the runs, ``program`` the code of the
processes. ``samples`` measures sizes and counts, ``flat`` decides whether they grow, and ``audit`` checks ended runs
and deletes them, as retention does. ``soak`` runs all of it; server, proxies and faults are those of ``chaos``.
"""

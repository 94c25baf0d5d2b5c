"""PostgreSQL as it is operated: standbys and promotions, a pooler, full disks, and connections that are terminated.

Everything is real: servers, worker processes, PgBouncer. ``load`` is the workload of ``tests/chaos`` while something
happens to the server, ``standby`` a streaming replica, ``pgbouncer`` a pooler, ``small_disk`` a disk that is soon full.
The tests take minutes and run with ``--long`` (``make operated``).
"""

"""A mixed load with faults for minutes: memory, connections, tables and WAL stay flat (``python -m tests.soak``).

``workload`` is what is run, ``load`` the client that starts and steers it, ``program`` what the processes do.
``samples`` reads how large everything is, ``flat`` judges whether it stays so, and ``audit`` checks what has ended and
deletes it, as retention does. ``soak`` puts it all together; server, proxies and faults are those of ``chaos``.
"""

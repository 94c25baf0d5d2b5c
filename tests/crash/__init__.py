"""Real processes, real signals, one SQLite file: what the engine promises when things die.

``workload`` is what runs, ``program`` what a process does, ``herd`` how processes are started and watched, ``killer``
how they die at a chosen store call, ``scene`` the place where it happens, ``checker`` what must be true afterwards,
``power`` a disk that forgets what was not synced. ``loops`` and ``drains`` have the workflows of single tests.
"""

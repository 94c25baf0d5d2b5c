"""Real processes, real signals, one SQLite file: what the engine promises when things die.

``workload`` is what runs, ``program`` what a process does, ``herd`` how processes are started and watched, ``killer`` how they
die at a chosen store call, ``checker`` what must be true afterwards, ``scene`` the place where it all happens, ``power`` a disk that forgets what was not synced.
"""

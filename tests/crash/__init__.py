"""Tests with real processes, real signals and one SQLite file: the engine keeps its promises when processes die.

``workload`` has the workflows, ``program`` the code of a process, ``workspace`` the directory and the processes of one
test, ``fork_server`` forks these processes, ``killer`` kills a process at a chosen store call, ``checker`` checks the
database afterwards, ``power`` simulates a disk that loses everything that was not synced. ``dying_steps`` and
``slow_steps`` have the workflows of single tests.
"""

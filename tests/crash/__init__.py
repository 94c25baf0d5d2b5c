"""Tests with real processes, real signals and one SQLite file: what the engine promises when processes die.

``workload`` has the workflows, ``program`` the code of a process, ``workspace`` the directory and the processes of one
test, ``killer`` the ways to die at a chosen store call, ``checker`` the conditions that hold afterwards, ``power`` a
disk that loses everything that was not synced. ``dying_steps`` and ``slow_steps`` have the workflows of single tests.
"""

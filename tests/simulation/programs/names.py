"""Names of the simulated workflows, chains and graphs.

Ids of children are derived from these names, and places of faults from the ids: another name would give every seed
another execution, and ``seeds.txt`` would lose its meaning.
"""

from __future__ import annotations

import re

PROGRAM = "program"
"""The workflow that runs a program."""
BUFFERED_PROGRAM = "buffered_program"
"""The same workflow with ``persist="task"``."""
PROGRAMS = (PROGRAM, BUFFERED_PROGRAM)
CHAIN = "relay"
CHAIN_WITH_LEASES = "leased"
GRAPH = "diamond"
GRAPH_OF_RUNS = "family"
GRAPH_WITH_FAILING_ITEMS = "sieve"
MAY_FAIL = "mortal"
"""A workflow that returns its parameter or fails."""
REPLIER = "answerer"
"""A workflow that replies to an ask or rejects it."""
STARTER = "starter"
"""A workflow that starts a run which outlives it, and returns the pid of that run."""
LINKED = "bound"
"""A workflow that is linked to a failing run."""
OLD, NEW = "old", "new"
"""Versions of the workers."""

_ROOT = re.compile(r"s\d+-\d{8}T\d{6,9}Z(-m\d+)?|[^-]+")


def root_of(instance: str) -> str:
    """The instance that a client or a schedule started, from the id of a descendant or a fork."""
    found = _ROOT.match(instance)
    return instance if found is None else found[0]

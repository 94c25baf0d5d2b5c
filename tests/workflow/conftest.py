"""Closes the machines that a test has opened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .machine_bench import OPEN_BENCHES


@pytest.fixture(autouse=True)
def closed_benches() -> Iterator[None]:
    yield
    while OPEN_BENCHES:
        OPEN_BENCHES.pop().close()

"""Leaves no machine behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .machine_bench import OPEN


@pytest.fixture(autouse=True)
def closed_benches() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()

"""Options of the whole suite."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hostile import plugin as hostile


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="visit every kill point of tests/crash (takes a while)")
    hostile.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    hostile.configure(config)

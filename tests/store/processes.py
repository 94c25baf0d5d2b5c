"""Other Python processes, for tests of a store that several processes use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

SOURCE = Path(__file__).parents[2] / "src"
TESTS = Path(__file__).parents[1]


def start(prelude: str, code: str, *args: str) -> subprocess.Popen[str]:
    """Start a Python process that executes ``prelude`` and the indented ``code``."""
    return subprocess.Popen(
        [sys.executable, "-c", prelude + dedent(code), *args],
        env=os.environ | {"PYTHONPATH": f"{SOURCE}{os.pathsep}{TESTS}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(started: subprocess.Popen[str]) -> str:
    """Wait for a process, assert that it succeeded, and return its output."""
    out, err = started.communicate(timeout=300)
    assert started.returncode == 0, err
    return out.strip()

"""The real ``holdfast`` command, run to its end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HOLDFAST = Path(sys.executable).parent / "holdfast"
_CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith("HOLDFAST_") and name not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TERM")
}


def clean_environment(**variables: str) -> dict[str, str]:
    return _CLEAN | variables


def holdfast(*arguments: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(HOLDFAST), *arguments],
        cwd=cwd,
        env=clean_environment(**env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def plain(text: str) -> str:
    """Without colours."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)

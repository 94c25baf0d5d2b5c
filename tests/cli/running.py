"""The real ``holdfast`` command, run to its end."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from . import forking

HOLDFAST = forking.HOLDFAST
_CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith("HOLDFAST_") and name not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TERM")
}


def clean_environment(**variables: str) -> dict[str, str]:
    return _CLEAN | variables


def holdfast(*arguments: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return run_command(arguments, cwd, clean_environment(**env), forked=_can_be_forked(arguments, env))


def _can_be_forked(arguments: tuple[str, ...], env: dict[str, str]) -> bool:
    """True unless the command starts workers or imports a user's app, or a variable may affect Python itself."""
    imports_no_app = bool(arguments) and arguments[0] in (
        "instances",
        "workflows",
        "migrate",
        "prune",
        "export",
        "import",
        "move",
        "doctor",
        "versions",
        "audit",
        "limits",
        "queues",
        "schedules",
        "stats",
        "workers",
    )
    return imports_no_app and all(name.startswith("HOLDFAST_") for name in env)


def run_command(
    arguments: tuple[str, ...], cwd: Path | None, env: dict[str, str], *, forked: bool
) -> subprocess.CompletedProcess[str]:
    if forked:
        return forking.run(arguments, cwd, env)
    return subprocess.run(
        [str(HOLDFAST), *arguments],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def plain(text: str) -> str:
    """The text without colours."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)

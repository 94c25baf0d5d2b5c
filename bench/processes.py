"""Child processes. Each makes one measurement within a time limit and prints its result as one JSON line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

from bench.contract import Job, Measurement

ROOT = Path(__file__).resolve().parent.parent
TIME_LIMIT_SECONDS = 120.0


COMPILED = Path(os.environ.get("BENCH_COMPILED", ROOT / ".venvs/compiled/bin/python"))
"""The interpreter of the environment with the compiled build (`make compiled`)."""


class MeasurementError(Exception):
    """A child failed or took too long; the message ends with the last line it wrote."""


def spawn(job: Job, *, errors: IO[str] | None = None) -> subprocess.Popen[str]:
    """Start the child. If the caller does not read its stderr, pass a file, or the child blocks on a full pipe."""
    return subprocess.Popen(
        [COMPILED if job.contender == "compiled" else sys.executable, "-m", "bench.child", job.to_json()],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=errors or subprocess.PIPE,
        text=True,
    )


def stop(process: subprocess.Popen[str]) -> str:
    """Kill the child with SIGKILL, for W6 and if it hangs. Returns the last line of its stderr."""
    process.kill()
    _, err = process.communicate()
    return last_line(err or "")


def measure(job: Job, *, time_limit: float = TIME_LIMIT_SECONDS) -> Measurement:
    process = spawn(job)
    try:
        out, err = process.communicate(timeout=time_limit)
    except subprocess.TimeoutExpired:
        error_line = stop(process)
        raise MeasurementError(
            f"{job.contender} {job.measure}: no result in {time_limit:.0f} s; {error_line}"
        ) from None
    except BaseException:
        stop(process)
        raise
    if process.returncode != 0 or not out.strip():
        raise MeasurementError(f"{job.contender} {job.measure}: {last_line(err)}")
    measured: Measurement = json.loads(out.strip().splitlines()[-1])
    return measured


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it wrote no error"

"""``python -m tests.chaos``: the long storm. Prints its seed; the same seed makes the same plan of faults."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

# The tests' packages are top-level packages, as under pytest.
sys.path.insert(0, str(Path(__file__).parent.parent))

from chaos.server import Server
from chaos.storm import LONG, SHORT, Size, storm


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="of the plan of faults (default: a new one)")
    parser.add_argument("--short", action="store_true", help="the size that the test suite runs, under a minute")
    parser.add_argument("--runs", type=int, default=None, help="how many, in tens")
    parser.add_argument("--faults", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=None, help="how long faults are injected")
    parser.add_argument("--workers", type=int, default=None)
    return parser.parse_args()


def size_of(options: argparse.Namespace) -> Size:
    overrides = {
        "copies": options.runs and max(1, options.runs // 10),
        "faults": options.faults,
        "seconds": options.seconds,
        "workers": options.workers,
    }
    return replace(
        SHORT if options.short else LONG, **{name: value for name, value in overrides.items() if value is not None}
    )


async def main() -> None:
    options = arguments()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    folder = Path(tempfile.mkdtemp(prefix="holdfast-storm-"))
    server = Server()
    try:
        await server.start()
        await storm(server, folder, size_of(options), seed, _report).run()
    except BaseException:
        _report(f"seed {seed}; the logs of the workers are in {folder}")
        _report(f"the end of the server's log:\n{server.log_text()[-3000:]}")
        raise
    else:
        shutil.rmtree(folder)
    finally:
        server.destroy()


def _report(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    asyncio.run(main())

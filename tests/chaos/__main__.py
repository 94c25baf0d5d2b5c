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

# The tests' packages are top-level ones, as pytest has them.
sys.path.insert(0, str(Path(__file__).parent.parent))

from chaos.server import Server
from chaos.storm import LONG, SHORT, Size, storm


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="of the plan of faults (default: a new one)")
    parser.add_argument("--short", action="store_true", help="what the test suite runs, under a minute")
    parser.add_argument("--runs", type=int, default=None, help="how many, in tens")
    parser.add_argument("--faults", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=None, help="how long faults are injected")
    parser.add_argument("--workers", type=int, default=None)
    return parser.parse_args()


def size_of(given: argparse.Namespace) -> Size:
    asked = {
        "copies": given.runs and max(1, given.runs // 10),
        "faults": given.faults,
        "seconds": given.seconds,
        "workers": given.workers,
    }
    return replace(
        SHORT if given.short else LONG, **{name: value for name, value in asked.items() if value is not None}
    )


async def main() -> None:
    given = arguments()
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="holdfast-storm-"))
    server = Server()
    try:
        await server.start()
        await storm(server, folder, size_of(given), seed, _say).run()
    except BaseException:
        _say(f"seed {seed}; what the workers said is in {folder}")
        _say(f"the server's last words:\n{server.said()[-3000:]}")
        raise
    else:
        shutil.rmtree(folder)
    finally:
        server.destroy()


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    asyncio.run(main())

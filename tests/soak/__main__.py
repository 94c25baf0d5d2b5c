"""``python -m tests.soak``: runs a mixed load with faults; checks that memory, connections, tables and WAL stay flat.

Prints its seed; the same seed makes the same plan of faults. Ends with status 1 if a value is not flat.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path

# The tests' packages are top-level packages, as under pytest.
sys.path.insert(0, str(Path(__file__).parent.parent))

from chaos.server import Server
from soak.flat import table
from soak.program import PLANTS
from soak.soak import SERVER, Size, Soak, missing


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None, help="seed of the plan of faults (default: a random one)")
    parser.add_argument("--rate", type=float, default=Size().rate, help="runs that the client starts per second")
    parser.add_argument("--workers", type=int, default=Size().workers)
    parser.add_argument(
        "--plant", action="append", choices=PLANTS, default=[], help="plant a leak, to test that it is detected"
    )
    parser.add_argument("--series", type=Path, default=None, help="write all samples to this file, as JSON lines")
    return parser.parse_args()


async def main() -> int:
    given = arguments()
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    size = Size(seconds=given.minutes * 60, rate=given.rate, workers=given.workers, plants=tuple(given.plant))
    folder = Path(tempfile.mkdtemp(prefix="holdfast-soak-"))
    server = Server(**SERVER)
    try:
        await server.start()
        soak = Soak(server, folder, size, seed, _say)
        verdicts = await soak.run()
    except BaseException:
        _say(f"seed {seed}; the logs of the processes are in {folder}")
        raise
    else:
        shutil.rmtree(folder)
    finally:
        server.destroy()
    if given.series is not None:
        given.series.write_text("".join(json.dumps([one.name, one.points]) + "\n" for one in soak.series()))
    _say(table(verdicts))
    without_samples = missing(verdicts)
    wrong = sum(not verdict.flat for verdict in verdicts)
    if without_samples:
        _say(f"too few samples: {', '.join(without_samples)}")
    summary = "too few samples" if without_samples else "all values are flat"
    _say(f"seed {seed}: {f'{wrong} values are NOT FLAT' if wrong else summary}")
    return 1 if wrong or without_samples else 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

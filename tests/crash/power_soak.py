"""Cut the power ten thousand times: ``python -m tests.crash.power_soak`` (``make power``).

A seed decides the order of the work, how often the log is moved into the file, and where the power is cut and what then
arrives; what threads and timers do is their own. So a failure is not repeated by its seed: the files that the cut has
left are kept, with what was promised, and ``again FOLDER`` looks at them once more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from random import Random

import apsw

_TESTS = str(Path(__file__).parents[1])
if _TESTS not in sys.path:
    sys.path.insert(0, _TESTS)

from crash.power import Disk  # noqa: E402
from crash.power_check import FILE, Promises, by_id, check_end, opened  # noqa: E402
from crash.power_executions import Cutter, execute, write_image  # noqa: E402
from crash.power_models import whole_plan  # noqa: E402
from holdfast.store.sqlite import connection  # noqa: E402

COPIES = 2
LIVES = 4
_LEASE = 0.3
_MEMORY = Path("/dev/shm")
_KEPT = "power-cut-failed"


def soak(seed: int, cycles: int, folder: Path) -> Counter[str]:
    """The lives of one program, each but the first beginning with what a cut of the one before has left."""
    rng = Random(seed)
    connection._CHECKPOINT_PAGES = rng.choice([10, 40, 150])
    plan = whole_plan(COPIES, seed)
    cutter = Cutter(folder / "image", plan)
    image: dict[str, bytes] = {}
    promises = Promises()
    for number in range(LIVES):
        write_image(image, folder / "disk")
        began = time.monotonic()
        journal = asyncio.run(execute(folder / "disk", plan, lease=_LEASE))
        print(
            f"seed {seed}, life {number + 1}: {len(journal.entries)} writes, {time.monotonic() - began:.1f} s",
            flush=True,
        )
        disk, said = Disk.of(image), promises.copy()
        quota = (cycles - cutter.cycles.total()) // (LIVES - number)
        try:
            image, promises = cutter.cut_execution(journal, disk, said, quota, rng)
            cutter.inspect(disk.image(), said)
        except (AssertionError, apsw.Error):
            print(f"seed {seed}, life {number + 1}: see {keep(cutter, said, seed)}", flush=True)
            raise
    last = opened(folder / "disk", as_store=True)
    check_end(last, by_id(plan))
    last.close()
    return cutter.cycles


def keep(cutter: Cutter, promises: Promises, seed: int) -> str:
    """Keep what the cut has left; the command that looks at it again."""
    kept = Path(tempfile.mkdtemp(prefix=f"{_KEPT}-{seed}-"))
    write_image(cutter.left, kept / "image")
    said = {name: sorted(found) if isinstance(found, set) else found for name, found in asdict(promises).items()}
    (kept / "promises.json").write_text(json.dumps(said))
    (kept / "seed").write_text(str(seed))
    return f"python -m tests.crash.power_soak again {kept}"


def again(kept: Path) -> None:
    said = json.loads((kept / "promises.json").read_text())
    pairs = {name: {tuple(one) for one in said[name]} for name in ("events", "results", "delivered")}
    promises = Promises(said["opened"], set(said["starts"]), ended=set(said["ended"]), **pairs)
    image = {file.name: file.read_bytes() for file in (kept / "image").iterdir()}
    with tempfile.TemporaryDirectory() as folder:
        Cutter(Path(folder) / "image", whole_plan(COPIES, int((kept / "seed").read_text()))).inspect(image, promises)
    print(f"{kept / 'image' / FILE} is whole, and holds what was promised")


def main() -> None:
    parser = argparse.ArgumentParser(description="Cut the power, again and again, and look for lost work.")
    parser.add_argument("again", nargs="*", metavar="again FOLDER", help="look at a failure again")
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    asked = parser.parse_args()
    if asked.again:
        again(Path(asked.again[1]))
        return
    logging.disable(logging.WARNING)  # that workers died is the point
    began, cycles = time.monotonic(), Counter[str]()
    folder = Path(tempfile.mkdtemp(prefix="power-cut-", dir=_MEMORY if _MEMORY.is_dir() else None))
    try:
        for seed in range(asked.first, asked.first + asked.seeds):
            cycles += soak(seed, -(-asked.cycles // asked.seeds), folder)
            kinds = ", ".join(f"{times} {kind}" for kind, times in cycles.items())
            print(f"seed {seed}: {cycles.total()} cycles ({kinds}), {time.monotonic() - began:.0f} s", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rate = cycles.total() / (time.monotonic() - began)
    print(f"{cycles.total()} power cuts of {asked.seeds} seeds, {rate:.0f} a second; nothing was lost")


if __name__ == "__main__":
    main()

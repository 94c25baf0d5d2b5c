"""Cut the power ten thousand times: ``python -m tests.crash.power_soak`` (``make power``).

A seed determines the order of the runs, the frequency of checkpoints, the points of the cuts and the images. It does
not determine the timing of threads and timers, so the same seed may not reproduce a failure. The image of a failure is
therefore kept, with the list of acknowledged data, and ``again FOLDER`` checks it again.
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
from crash.power_check import FILE, AcknowledgedData, by_id, check_end, opened  # noqa: E402
from crash.power_executions import Cutter, execute, write_image  # noqa: E402
from crash.power_models import whole_plan  # noqa: E402
from holdfast.store.sqlite import connection  # noqa: E402

COPIES = 2
EXECUTIONS = 4
_LEASE = 0.3
_MEMORY = Path("/dev/shm")
_KEPT = "power-cut-failed"


def soak(seed: int, cycles: int, folder: Path) -> Counter[str]:
    """Execute the program several times, each time from the image of a cut in the previous execution."""
    rng = Random(seed)
    connection._CHECKPOINT_PAGES = rng.choice([10, 40, 150])
    plan, in_files = whole_plan(COPIES, seed), seed % 2 == 0
    cutter = Cutter(folder / "image", plan)
    image: dict[str, bytes] = {}
    acknowledged = AcknowledgedData()
    for number in range(EXECUTIONS):
        write_image(image, folder / "disk")
        began = time.monotonic()
        journal = asyncio.run(execute(folder / "disk", plan, lease=_LEASE, in_files=in_files))
        print(
            f"seed {seed}, execution {number + 1}: {len(journal.entries)} writes, {time.monotonic() - began:.1f} s",
            flush=True,
        )
        disk, current = Disk.of(image), acknowledged.copy()
        quota = (cycles - cutter.cycles.total()) // (EXECUTIONS - number)
        try:
            image, acknowledged = cutter.cut_execution(journal, disk, current, quota, rng)
            cutter.inspect(disk.image(), current)
        except (AssertionError, apsw.Error):
            print(f"seed {seed}, execution {number + 1}: see {keep(cutter, current, seed)}", flush=True)
            raise
    last = opened(folder / "disk", as_store=True)
    check_end(last, by_id(plan))
    last.close()
    return cutter.cycles


def keep(cutter: Cutter, acknowledged: AcknowledgedData, seed: int) -> str:
    """Keep the image of the last cut; returns the command that checks it again."""
    kept = Path(tempfile.mkdtemp(prefix=f"{_KEPT}-{seed}-"))
    write_image(cutter.last_image, kept / "image")
    values = {name: sorted(found) if isinstance(found, set) else found for name, found in asdict(acknowledged).items()}
    (kept / "acknowledged.json").write_text(json.dumps(values))
    (kept / "seed").write_text(str(seed))
    return f"python -m tests.crash.power_soak again {kept}"


def again(kept: Path) -> None:
    values = json.loads((kept / "acknowledged.json").read_text())
    pairs = {name: {tuple(one) for one in values[name]} for name in ("events", "results", "delivered", "read")}
    acknowledged = AcknowledgedData(values["opened"], set(values["starts"]), ended=set(values["ended"]), **pairs)
    images = kept / "image"
    image = {str(file.relative_to(images)): file.read_bytes() for file in images.rglob("*") if file.is_file()}
    with tempfile.TemporaryDirectory() as folder:
        Cutter(Path(folder) / "image", whole_plan(COPIES, int((kept / "seed").read_text()))).inspect(
            image, acknowledged
        )
    print(f"{kept / 'image' / FILE} is not damaged, and has all acknowledged data")


def main() -> None:
    parser = argparse.ArgumentParser(description="Cut the power repeatedly; check that no acknowledged data is lost.")
    parser.add_argument("again", nargs="*", metavar="again FOLDER", help="check the kept image of a failure again")
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=10, help="the number of seeds")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    asked = parser.parse_args()
    if asked.again:
        again(Path(asked.again[1]))
        return
    logging.disable(logging.WARNING)  # each takeover after a cut logs a warning
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

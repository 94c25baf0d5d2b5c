"""The command line: `python -m bench [workloads] [--rounds N] [--quick]` and `python -m bench scale`."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from bench import machine, scale
from bench.plan import CONTENDERS, WORKLOADS, Plan, run
from bench.report import comparison


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = [workload.key for workload in WORKLOADS]
    parser.add_argument(
        "what",
        nargs="*",
        metavar="WORKLOAD",
        help=f"{', '.join(names)} (all), scale, growth, workers, messages or models",
    )
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL server of its own (without W6)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of every contender (3)")
    parser.add_argument("--quick", action="store_true", help="one small round, to see that all of it runs")
    parser.add_argument("--only", choices=CONTENDERS, action="append", help="measure only this contender; repeatable")
    parser.add_argument("--lease", type=float, default=5.0, help="Holdfast's lease in W6, in seconds (5)")
    parser.add_argument("--window", type=float, default=20.0, help="scale: seconds over which the timers are due (20)")
    parser.add_argument("--dir", help="where the databases go (the temporary directory, if it is on a disk)")
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.what) - {*names, "scale", "growth", "workers", "messages", "models"}
    if unknown:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}")
    return chosen


def contenders(chosen: argparse.Namespace) -> list[str]:
    wanted = list(chosen.only or CONTENDERS)
    if machine.version("dbos") is None and any(name.startswith("dbos") for name in wanted):
        print("DBOS is not installed and is left out; the dependency group `bench` has it.", file=sys.stderr)
        return [name for name in wanted if not name.startswith("dbos")]
    return wanted


def main() -> None:
    chosen = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that files and children go too
    began, load_before = time.monotonic(), machine.load()
    parent = chosen.dir or machine.scratch_parent()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as directory:
        where = Path(directory).resolve()
        print("\n".join(machine.facts(where)), flush=True)
        print(measured(chosen, where))
    print(f"\nMeasured in {time.monotonic() - began:.0f} s. {machine.load_note(load_before)}")


def measured(chosen: argparse.Namespace, where: Path) -> str:
    if "scale" in chosen.what:
        return scale.run(where, quick=chosen.quick, window=chosen.window, rounds=chosen.rounds)
    if "growth" in chosen.what:
        from bench import growth

        return growth.run(where, quick=chosen.quick)
    if "workers" in chosen.what:
        from bench import workers

        return workers.run(where)
    if "messages" in chosen.what:
        return of_messages(chosen, where)
    if "models" in chosen.what:
        return of_models(chosen, where)
    wanted = [workload for workload in WORKLOADS if not chosen.what or workload.key in chosen.what]
    plan = Plan(wanted, contenders(chosen), chosen.rounds, quick=chosen.quick, lease=chosen.lease)
    if not chosen.postgres:
        results, notes = run(plan, where)
        return "\n".join(["", comparison(results, wanted), "", *notes])
    return on_postgres(plan, where)


def of_messages(chosen: argparse.Namespace, where: Path) -> str:
    from bench import messages, postgres

    if not chosen.postgres:
        return messages.run(where, quick=chosen.quick)
    with postgres.serving(where) as server:
        return messages.run(where, quick=chosen.quick, url=server.database("messages"))


def of_models(chosen: argparse.Namespace, where: Path) -> str:
    from bench import models, postgres

    if not chosen.postgres:
        return models.run(where, quick=chosen.quick)
    with postgres.serving(where) as server:
        return models.run(where, quick=chosen.quick, url=server.database)


def on_postgres(plan: Plan, where: Path) -> str:
    """All but W6, which is about leases and not about the database; Holdfast and DBOS as they come."""
    from bench import postgres

    wanted = [workload for workload in plan.workloads if workload.key != "W6"]
    names = [name for name in plan.contenders if name in ("holdfast", "dbos_default")]
    with postgres.serving(where) as server:
        results, notes = run(replace(plan, workloads=wanted, contenders=names, server=server), where)
    return "\n".join([f"PostgreSQL {server.version}", "", comparison(results, wanted), "", *notes])


if __name__ == "__main__":
    main()

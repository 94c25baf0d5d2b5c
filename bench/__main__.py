"""The command line: `python -m bench [workloads] [--rounds N] [--quick]` and `python -m bench scale`."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from bench import machine, scale
from bench.plan import CONTENDERS, WORKLOADS, Plan, run
from bench.processes import COMPILED
from bench.report import comparison


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = [workload.key for workload in WORKLOADS]
    parser.add_argument(
        "workloads",
        nargs="*",
        metavar="WORKLOAD",
        help=f"{', '.join(names)} (all), scale, curves, growth, workers, retention, messages, "
        "models, cost, telemetry, schedules, flow, streams or special",
    )
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL server of its own")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of every contender (3)")
    parser.add_argument("--quick", action="store_true", help="one small round, to check that everything runs")
    parser.add_argument("--only", choices=CONTENDERS, action="append", help="measure only this contender; repeatable")
    parser.add_argument("--lease", type=float, default=5.0, help="Holdfast's lease in W6, in seconds (5)")
    parser.add_argument("--window", type=float, default=20.0, help="scale: seconds over which the timers are due (20)")
    parser.add_argument("--scale", type=float, default=0.1, help="curves: share of the largest sizes (0.1)")
    parser.add_argument("--curve", action="append", default=[], help="curves: measure only this one; repeatable")
    parser.add_argument("--out", type=Path, help="curves: folder for the charts")
    parser.add_argument("--dir", help="where the databases go (the temporary directory, if it is on a disk)")
    options = parser.parse_args(arguments)
    others = {
        "scale",
        "curves",
        "growth",
        "workers",
        "retention",
        "messages",
        "models",
        "cost",
        "telemetry",
        "schedules",
        "flow",
        "streams",
        "special",
    }
    unknown = set(options.workloads) - {*names, *others}
    if unknown:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}")
    return options


def contenders(options: argparse.Namespace) -> list[str]:
    chosen = list(options.only or CONTENDERS)
    for package, prefix in (("dbos", "dbos"), ("absurd-sdk", "absurd"), ("restate-sdk", "restate")):
        if machine.version(package) is None and any(name.startswith(prefix) for name in chosen):
            print(f"{package} is not installed and is left out; the dependency group `bench` has it.", file=sys.stderr)
            chosen = [name for name in chosen if not name.startswith(prefix)]
    if "compiled" in chosen and not COMPILED.exists():
        print("the compiled build is left out; `make compiled` makes it.", file=sys.stderr)
        chosen.remove("compiled")
    if "restate" in chosen and shutil.which("restate-server") is None:
        print(
            "restate-server is not on the PATH and is left out; npm has it (@restatedev/restate-server).",
            file=sys.stderr,
        )
        chosen.remove("restate")
    return chosen


def main() -> None:
    options = parse(sys.argv[1:])
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit("stopped")
    )  # raises SystemExit, so that files and child processes are cleaned up
    started, load_before = time.monotonic(), machine.load()
    parent = options.dir or machine.scratch_parent()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as directory:
        where = Path(directory).resolve()
        print("\n".join(machine.facts(where)), flush=True)
        print(run_chosen(options, where))
    print(f"\nMeasured in {time.monotonic() - started:.0f} s. {machine.load_note(load_before)}")


def run_chosen(options: argparse.Namespace, where: Path) -> str:
    if "scale" in options.workloads:
        return scale.run(where, quick=options.quick, window=options.window, rounds=options.rounds)
    if "curves" in options.workloads:
        from bench import curves

        return curves.run(where, scale=options.scale, only=options.curve, out=options.out)
    if "flow" in options.workloads:
        from bench import flow

        return flow.run(where, quick=options.quick, rounds=options.rounds, on_postgres=options.postgres)
    if "schedules" in options.workloads:
        from bench import schedules

        return schedules.run(where, quick=options.quick, on_postgres=options.postgres)
    if "growth" in options.workloads:
        from bench import growth

        return growth.run(where, quick=options.quick)
    if "workers" in options.workloads:
        from bench import workers

        return workers.run(where)
    if "retention" in options.workloads:
        from bench import retention

        return retention.run(where, quick=options.quick)
    if "telemetry" in options.workloads:
        from bench import telemetry

        return telemetry.run(where)
    if "streams" in options.workloads:
        from bench import streams

        return streams.run(where, quick=options.quick)
    if "special" in options.workloads:
        from bench import special_paths

        return special_paths.run(where, quick=options.quick, rounds=options.rounds)
    if "messages" in options.workloads:
        return run_messages(options, where)
    if "models" in options.workloads:
        return run_models(options, where)
    if "cost" in options.workloads:
        return run_cost(options, where)
    workloads = [workload for workload in WORKLOADS if not options.workloads or workload.key in options.workloads]
    plan = Plan(workloads, contenders(options), options.rounds, quick=options.quick, lease=options.lease)
    if not options.postgres:
        results, notes = run(plan, where)
        return "\n".join(["", comparison(results, workloads), "", *notes])
    return run_on_postgres(plan, where)


def run_messages(options: argparse.Namespace, where: Path) -> str:
    from bench import messages, postgres

    if not options.postgres:
        return messages.run(where, quick=options.quick)
    with postgres.serving(where) as server:
        return messages.run(where, quick=options.quick, url=server.database("messages"))


def run_models(options: argparse.Namespace, where: Path) -> str:
    from bench import models, postgres

    if not options.postgres:
        return models.run(where, quick=options.quick)
    with postgres.serving(where) as server:
        return models.run(where, quick=options.quick, url=server.database)


def run_cost(options: argparse.Namespace, where: Path) -> str:
    from bench import cost, postgres

    if not options.postgres:
        return cost.run(where)
    with postgres.serving(where) as server:
        return cost.run(where, server)


def run_on_postgres(plan: Plan, where: Path) -> str:
    """Compare Holdfast, DBOS in its default configuration and Absurd."""
    from bench import postgres

    with postgres.serving(where) as server:
        results, notes = run(replace(plan, server=server), where)
    return "\n".join([f"PostgreSQL {server.version}", "", comparison(results, plan.workloads), "", *notes])


if __name__ == "__main__":
    main()

"""``holdfast versions``: open runs and living workers of each release. Uses HTTP only."""

from __future__ import annotations

from holdfast.cli.remote import Remote


def versions(remote: Remote) -> None:
    """Show the open runs of each release, and whether a worker for it is alive.

    The release is the version of the workers (WorkerConfig). A pinned run needs a worker of its version; "-" stands for
    runs and workers without a version.

    \b
    Examples:
      holdfast versions -b http://127.0.0.1:8787/api/workflows
      holdfast instances move -w fulfil -i order-1 --to 2026-11-17
    """
    from holdfast.cli.output import console, line, show_table, table

    found = remote.get("_versions", expect="versions").list("versions")
    if not found:
        console().print("There are no open runs and no workers.")
        return
    rows = [
        [
            line(item.text("version") or "-"),
            line(str(item.number("openRuns") or 0)),
            line("yes" if item.true("alive") else "no"),
        ]
        for item in found
    ]
    show_table(console(), table(["VERSION", "OPEN_RUNS", "WORKER_ALIVE"], rows))

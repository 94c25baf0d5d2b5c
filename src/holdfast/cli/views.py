"""What the commands about instances print, given what the server answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from holdfast.cli.follow import Follower
from holdfast.cli.past import Past
from holdfast.cli.remote import say
from holdfast.cli.safe import one_line
from holdfast.cli.shown import (
    brief,
    coloured,
    command,
    console,
    error_text,
    line,
    log_line,
    pairs,
    show_table,
    step_name,
    table,
    traceback_text,
    when,
    when_utc,
    whole,
    without_empty,
)
from holdfast.cli.story import told
from holdfast.cli.wire import TERMINAL, Fields, first_time

_SHOWN = 10
"""How many runs one line names."""
_LONGEST_FACT = 1000


def show_list(
    answer: Fields, workflow: str, status: str | None, given: Sequence[str] = (), *, searched: bool = False
) -> None:
    """``given``: further options of the command, which the next page needs too."""
    out, found = console(), answer.list("instances")
    if not found:
        out.print(line(f"No {status or ''} instances of {workflow}{' with these attributes' if searched else ''}."))
        return
    show_table(out, without_empty(["ID", "KIND", "STATUS", "CREATED (UTC)", "ERROR"], [_row(item) for item in found]))
    if answer.true("hasNextPage"):
        filters = [*([] if status is None else ["--status", status]), *given]
        cursor = answer.text("nextCursor") or answer.text("cursor")
        out.print("\nThere are more:")
        out.print(command("holdfast", "instances", "list", "-w", workflow, *filters, "--cursor", cursor))


def _row(item: Fields) -> list[Text]:
    details = item.fields("details")
    error = error_text(details.fields("error"))
    created = when(item.time("createdAt"))
    return [
        line(item.text("id")),
        line(item.text("kind")),
        coloured(details.text("status")),
        line(created),
        line(error, "red"),
    ]


def show_instance(instance: Fields, workflow: str, *, full: bool) -> None:
    out, meta, details = console(), instance.fields("meta"), instance.fields("details")
    name = meta.text("workflowName") or workflow
    out.print(line(f"{name}/{instance.text('id')}", "bold"))
    show_table(out, pairs(_about(meta, details)))
    _show_traceback(out, meta, details)
    if full:
        out.print("\nInput:", whole(meta.any("params")), sep="\n")
        out.print("\nOutput:", whole(details.any("output")) if "output" in details else Text("none yet"), sep="\n")


def _show_traceback(out: Console, meta: Fields, details: Fields) -> None:
    """The traceback of the run's error, or of the last failed attempt of a step that is retried."""
    step = meta.fields("currentStep")
    for head, error in (("", details.fields("error")), (f"{step_name(step)}:\n", step.fields("error"))):
        text = traceback_text(error)
        if text:
            out.print(Text(f"\n{head}{text}"), soft_wrap=True)
            return


def _about(meta: Fields, details: Fields) -> Iterator[tuple[str, Text]]:
    status, error = details.text("status"), error_text(details.fields("error"))
    yield "status", coloured(status)
    for name, text in (("why", meta.text("why")), ("error", error)):
        if text and text != status:
            yield name, line(text)
    if "currentStep" in meta:
        yield "step", _step(meta.fields("currentStep"))
    yield "run", line(str(meta.number("runNumber") or 0))
    yield from _dealings(meta)
    for field, name in (("kind", "kind"), ("workflowVersion", "version"), ("nativeStatus", "native status")):
        if meta.any(field) not in (None, "workflow"):
            yield name, line(str(meta.any(field)))
    if meta.true("killed"):
        yield "killed", line("yes: it has a tombstone", "red")
    for field in ("createdAt", "startedAt", "updatedAt", "completedAt"):
        if meta.time(field) is not None:
            yield field.removesuffix("At"), line(when_utc(meta.time(field)))


def _dealings(meta: Fields) -> Iterator[tuple[str, Text]]:
    """What it has to do with other runs, and what it says of itself."""
    for name in ("attempt", "summary", "parent"):
        if name in meta:
            yield name, line(str(meta.any(name)))
    children = [f"{child.text('pid')} ({child.text('status')})" for child in meta.list("children")]
    for name, texts in (("children", children), ("links", meta.texts("links")), ("monitors", meta.texts("monitors"))):
        if texts:
            yield name, line(", ".join(texts[:_SHOWN]) + (" …" if len(texts) > _SHOWN else ""))
    for name in ("search", "memo"):
        if name in meta:
            yield name, line(brief(meta.any(name)))


def _step(step: Fields) -> Text:
    """The current step on one line: what it is, how far, and what it waits for."""
    name, key = step_name(step), one_line(step.text("stepKey"))
    text = line(name).append(f" ({one_line(step.text('type'))}), " if name == key else ", ")
    text.append_text(coloured(step.text("state") or step.text("status")))
    text.append(_tried(step))
    for field, words in (("wakeAt", "until"), ("nextRetryAt", "tries again at")):
        if step.time(field) is not None and step.text("status") in ("pending", "waiting"):
            text.append(f", {words} {when_utc(step.time(field))}")
    error = error_text(step.fields("error"))
    return text.append(f"; {error}") if error else text


def _tried(step: Fields) -> str:
    attempts, most = step.number("attempts"), step.number("maxAttempts")
    of_most = f" of {most}" if most is not None else ""
    if "stepSeq" in step:  # of a chain: those that have failed are counted
        return f", {attempts}{of_most} attempts failed" if attempts else ""
    return f", attempt {attempts}{of_most}" if step.text("type") in ("do", "node") else ""


def show_history(past: Past, instance: Fields, *, newest_first: bool, full: bool = False) -> None:
    out, meta, details = console(), instance.fields("meta"), instance.fields("details")
    current = past.run_number == meta.number("runNumber")
    out.print(_title(past, instance, current))
    # A page tells what happened next, not how the run began and ended.
    run = instance if current and past.whole else None
    steps, events, logs = past.items["steps"], past.items["events"], first_time(past.items["logs"])
    if newest_first:
        steps = steps[::-1]
    moments = told(steps, events, logs, run, full=full)
    for moment in reversed(moments) if newest_first else moments:
        out.print(Text(f"{when(moment.at):<23}  ").append_text(moment.text), soft_wrap=True)
    if not moments:
        out.print("Nothing has happened in this run.")
    _show_cursors(out, past)
    if current and details.text("status") not in TERMINAL:
        out.print(Text("\nNow: ", "bold").append_text(line(meta.text("why"))), soft_wrap=True)


def _title(past: Past, instance: Fields, current: bool) -> Text:
    meta, details = instance.fields("meta"), instance.fields("details")
    name = f"{one_line(meta.text('workflowName'))}/{one_line(instance.text('id'))}"
    title = Text(f"{name}, run {past.run_number}", "bold")
    if current:
        title.append(": ").append_text(coloured(details.text("status")))
    else:
        title.append(f" (the current run is {meta.number('runNumber')})")
    return title.append("; times are UTC", "dim")


def _show_cursors(out: Console, past: Past) -> None:
    if past.cursors:
        words = [word for name, cursor in past.cursors.items() for word in (f"--{name}-cursor", cursor)]
        out.print("\nThere is more; go on with:")
        out.print(command(*words))


def show_logs(past: Past, *, replayed: bool) -> None:
    out, logs = console(), past.items["logs"] if replayed else first_time(past.items["logs"])
    for log in logs:
        out.print(log_line(log), soft_wrap=True)
    if not logs:
        say("No log lines.")
    _show_cursors(out, past)


def show_followed(follower: Follower, run: int | None) -> None:
    """Each line at once, also into a pipe."""
    out, before = console(), None
    for log in follower.lines(run):
        number = log.number("runNumber")
        if before is not None and number != before:
            say(f"run {number}:")
        before = number
        out.print(log_line(log), soft_wrap=True)
        out.file.flush()


def show_created(answer: Fields, workflow: str) -> None:
    out, new, status = console(), answer.text("id"), answer.fields("details").text("status")
    out.print(line(f"{workflow}/{new} is created:").append(" ").append_text(coloured(status)))
    out.print(command("holdfast", "instances", "get", "-w", workflow, "-i", new))


def show_sent(answer: Fields, workflow: str, id: str, type: str) -> None:
    status = answer.fields("status").text("status")
    text = f"event {type} is sent to {workflow}/{id}, which was"
    console().print(line(text).append(" ").append_text(coloured(status)))


def show_managed(workflow: str, id: str, outcome: str) -> None:
    console().print(line(f"{workflow}/{id} {outcome}."))


def show_facts(answer: Fields, workflow: str, id: str, prefix: str | None) -> None:
    found = answer.fields("facts")
    rows = [[line(key), line(brief(found.any(key), _LONGEST_FACT))] for key in found]
    if rows:
        show_table(console(), table(["FACT", "VALUE"], rows))
    else:
        console().print(line(f"No facts of {workflow}/{id}" + (f" begin with {prefix}." if prefix else ".")))


def show_outbox(answer: Fields, workflow: str, id: str) -> None:
    out, events = console(), answer.list("events")
    if not events:
        out.print(line(f"{workflow}/{id} has nothing in its outbox."))
        return
    columns = ["EVENT", "STEP", "STATE", "SINCE (UTC)", "FAILED", "NEXT (UTC)", "ERROR", "PAYLOAD"]
    show_table(out, without_empty(columns, [_outbox_row(event) for event in events]))
    if any(event.text("state") == "parked" for event in events):
        out.print("\nParked events are tried again by:")
        out.print(command("holdfast", "instances", "redeliver", "-w", workflow, "-i", id))


def _outbox_row(event: Fields) -> list[Text]:
    failed, payload = event.number("attempts"), event.any("payload")
    since = event.time("deliveredAt") or event.time("parkedAt") or event.time("createdAt")
    return [
        line(event.text("type")),
        line(event.text("step")),
        coloured(event.text("state")),
        line(when(since)),
        line(str(failed) if failed else ""),
        line(when(event.time("nextAttemptAt")) if failed else ""),
        line(event.text("error"), "red"),
        line("" if payload is None else brief(payload)),
    ]


def show_redelivered(answer: Fields, workflow: str, id: str) -> None:
    count = answer.number("redelivered") or 0
    what = f"{count} parked event{'' if count == 1 else 's'} will be tried again" if count else "no event is parked"
    console().print(line(f"{workflow}/{id}: {what}."))

"""Output of ``holdfast instances``, made from the responses of the server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from holdfast.cli.follow import Follower
from holdfast.cli.history_pages import RunHistory
from holdfast.cli.output import (
    coloured,
    command,
    compact_table,
    console,
    error_text,
    full_json,
    key_value_table,
    line,
    log_line,
    short_json,
    show_table,
    step_name,
    table,
    timestamp,
    timestamp_utc,
    traceback_text,
)
from holdfast.cli.remote import print_note
from holdfast.cli.response_fields import TERMINAL, Fields, without_replayed
from holdfast.cli.terminal_text import one_line
from holdfast.cli.timeline import origin_text, timeline

_MAX_LISTED_RUNS = 10
"""Maximum number of runs named on one line."""
_FACT_WIDTH = 1000


def show_list(
    page: Fields,
    workflow: str | None,
    status: str | None,
    options: Sequence[str] = (),
    *,
    searched: bool = False,
    wide: bool = False,
) -> None:
    """Show a page of instances. ``options`` are further options of the command, which the next page needs too."""
    out, items = console(), page.list("instances")
    if not items:
        of = "" if workflow is None else f" of {workflow}"
        out.print(line(f"No {status or ''} instances{of}{' with these attributes' if searched else ''}."))
        return
    if wide:
        show_table(out, table(_WIDE_COLUMNS, [_wide_row(item, workflow) for item in items]))
    else:
        head = ["INSTANCE" if workflow is None else "ID", "KIND", "STATUS", "CREATED (UTC)", "ERROR"]
        show_table(out, compact_table(head, [_row(item) for item in items]))
    if page.true("hasNextPage"):
        filters = [*([] if status is None else ["--status", status]), *options]
        cursor = page.text("nextCursor") or page.text("cursor")
        out.print("\nThere are more:")
        of_workflow = [] if workflow is None else ["-w", workflow]
        out.print(command("holdfast", "instances", "list", *of_workflow, *filters, "--cursor", cursor))


def _row(item: Fields) -> list[Text]:
    details = item.fields("details")
    error = error_text(details.fields("error"))
    created = timestamp(item.time("createdAt"))
    return [
        line(_address(item, None)),
        line(item.text("kind")),
        coloured(details.text("status")),
        line(created),
        line(error, "red"),
    ]


_WIDE_COLUMNS = ["INSTANCE", "STATUS", "CREATED_UTC", "KIND", "ERROR"]


def _wide_row(item: Fields, workflow: str | None) -> list[Text]:
    """A row without empty fields; only the last column may contain spaces."""
    details = item.fields("details")
    return [
        line(_address(item, workflow)),
        coloured(details.text("status")),
        line(timestamp(item.time("createdAt")).replace(" ", "T")),
        line(item.text("kind") or "workflow"),
        line(error_text(details.fields("error")) or "-", "red" if details.fields("error") else ""),
    ]


def _address(item: Fields, workflow: str | None) -> str:
    """The id of an instance; in a list of several workflows ``workflow/id``, as commands accept it."""
    name = item.text("workflowName") or workflow
    return f"{name}/{item.text('id')}" if name else item.text("id")


def show_instance(instance: Fields, workflow: str, *, full: bool) -> None:
    out, meta, details = console(), instance.fields("meta"), instance.fields("details")
    name = meta.text("workflowName") or workflow
    out.print(line(f"{name}/{instance.text('id')}", "bold"))
    show_table(out, key_value_table(_properties(meta, details)))
    _show_traceback(out, meta, details)
    if full:
        out.print("\nInput:", full_json(meta.any("params")), sep="\n")
        out.print("\nOutput:", full_json(details.any("output")) if "output" in details else Text("none yet"), sep="\n")


def _show_traceback(out: Console, meta: Fields, details: Fields) -> None:
    """Show the traceback of the run's error, or of the last failed attempt of a step that is retried."""
    step = meta.fields("currentStep")
    for head, error in (("", details.fields("error")), (f"{step_name(step)}:\n", step.fields("error"))):
        text = traceback_text(error)
        if text:
            out.print(Text(f"\n{head}{text}"), soft_wrap=True)
            return


def _properties(meta: Fields, details: Fields) -> Iterator[tuple[str, Text]]:
    status, error = details.text("status"), error_text(details.fields("error"))
    yield "status", coloured(status)
    for name, text in (("why", meta.text("why")), ("error", error)):
        if text and text != status:
            yield name, line(text)
    if "currentStep" in meta:
        yield "step", _step(meta.fields("currentStep"))
    yield "run", line(str(meta.number("runNumber") or 0))
    if "origin" in meta:
        yield "origin", line(origin_text(meta.fields("origin")))
    yield from _relations_and_attributes(meta)
    for field, name in (("kind", "kind"), ("workflowVersion", "version"), ("nativeStatus", "native status")):
        if meta.any(field) not in (None, "workflow"):
            yield name, line(str(meta.any(field)))
    if meta.true("killed"):
        yield "killed", line("yes: it has a tombstone", "red")
    for field in ("createdAt", "startedAt", "updatedAt", "completedAt"):
        if meta.time(field) is not None:
            yield field.removesuffix("At"), line(timestamp_utc(meta.time(field)))


def _relations_and_attributes(meta: Fields) -> Iterator[tuple[str, Text]]:
    """The run's relations to other runs, and the attributes that its code has set."""
    for name in ("attempt", "summary", "parent"):
        if name in meta:
            yield name, line(str(meta.any(name)))
    children = [f"{child.text('pid')} ({child.text('status')})" for child in meta.list("children")]
    for name, texts in (("children", children), ("links", meta.texts("links")), ("monitors", meta.texts("monitors"))):
        if texts:
            yield name, line(", ".join(texts[:_MAX_LISTED_RUNS]) + (" …" if len(texts) > _MAX_LISTED_RUNS else ""))
    for name in ("search", "memo"):
        if name in meta:
            yield name, line(short_json(meta.any(name)))


def _step(step: Fields) -> Text:
    """The current step on one line: name, state, attempt, the time it waits for, and error."""
    name, key = step_name(step), one_line(step.text("stepKey"))
    text = line(name).append(f" ({one_line(step.text('type'))}), " if name == key else ", ")
    text.append_text(coloured(step.text("state") or step.text("status")))
    text.append(_attempts(step))
    for field, words in (("wakeAt", "until"), ("nextRetryAt", "tries again at")):
        if step.time(field) is not None and step.text("status") in ("pending", "waiting"):
            text.append(f", {words} {timestamp_utc(step.time(field))}")
    error = error_text(step.fields("error"))
    return text.append(f"; {error}") if error else text


def _attempts(step: Fields) -> str:
    attempts, limit = step.number("attempts"), step.number("maxAttempts")
    of_limit = f" of {limit}" if limit is not None else ""
    if "stepSeq" in step:  # a chain counts failed attempts
        return f", {attempts}{of_limit} attempts failed" if attempts else ""
    return f", attempt {attempts}{of_limit}" if step.text("type") in ("do", "node") else ""


def show_history(history: RunHistory, instance: Fields, *, newest_first: bool, full: bool = False) -> None:
    out, meta, details = console(), instance.fields("meta"), instance.fields("details")
    current = history.run_number == meta.number("runNumber")
    out.print(_title(history, instance, current))
    # A single page does not show the start and the end of the run.
    run = instance if current and history.complete else None
    steps, events, logs = history.items["steps"], history.items["events"], without_replayed(history.items["logs"])
    if newest_first:
        steps = steps[::-1]
    origin = history.origin if history.from_start else None
    entries = timeline(steps, events, logs, run, origin=origin, full=full)
    for entry in reversed(entries) if newest_first else entries:
        out.print(Text(f"{timestamp(entry.at):<23}  ").append_text(entry.text), soft_wrap=True)
    if not entries:
        out.print(_no_history(history.run_number, meta.number("runNumber")), soft_wrap=True)
    _show_cursors(out, history)
    if current and details.text("status") not in TERMINAL:
        out.print(Text("\nNow: ", "bold").append_text(line(meta.text("why"))), soft_wrap=True)


def _no_history(number: int | None, current: int | None) -> str:
    if number == current:
        return "Nothing has happened in this run."
    if number is not None and current is not None and number > current:
        return f"There is no run {number}."
    return "There is no record of this run: it was deleted, or nothing happened in it."


def _title(history: RunHistory, instance: Fields, current: bool) -> Text:
    meta, details = instance.fields("meta"), instance.fields("details")
    name = f"{one_line(meta.text('workflowName'))}/{one_line(instance.text('id'))}"
    title = Text(f"{name}, run {history.run_number}", "bold")
    if current:
        title.append(": ").append_text(coloured(details.text("status")))
    else:
        title.append(f" (the current run is {meta.number('runNumber')})")
    return title.append("; times are UTC", "dim")


def _show_cursors(out: Console, history: RunHistory) -> None:
    if history.cursors:
        words = [word for name, cursor in history.cursors.items() for word in (f"--{name}-cursor", cursor)]
        out.print("\nThere is more; continue with:")
        out.print(command(*words))


def show_logs(history: RunHistory, *, replayed: bool) -> None:
    out, logs = console(), history.items["logs"] if replayed else without_replayed(history.items["logs"])
    for log in logs:
        out.print(log_line(log), soft_wrap=True)
    if not logs:
        print_note("No log lines.")
    _show_cursors(out, history)


def show_followed(follower: Follower, run: int | None) -> None:
    """Show lines as they are read. Each line is flushed, also into a pipe."""
    out, previous_number = console(), None
    for log in follower.lines(run):
        number = log.number("runNumber")
        if previous_number is not None and number != previous_number:
            print_note(f"run {number}:")
        previous_number = number
        out.print(log_line(log), soft_wrap=True)
        out.file.flush()


def show_created(created: Fields, workflow: str) -> None:
    out, instance_id, status = console(), created.text("id"), created.fields("details").text("status")
    out.print(line(f"{workflow}/{instance_id} is created:").append(" ").append_text(coloured(status)))
    out.print(command("holdfast", "instances", "get", "-w", workflow, "-i", instance_id))


def show_sent(sent: Fields, workflow: str, id: str, type: str) -> None:
    status = sent.fields("status").text("status")
    text = f"event {type} is sent to {workflow}/{id}, which was"
    console().print(line(text).append(" ").append_text(coloured(status)))


def show_managed(workflow: str, id: str, outcome: str) -> None:
    console().print(line(f"{workflow}/{id}: {outcome}."))


def show_facts(response: Fields, workflow: str, id: str, prefix: str | None) -> None:
    facts = response.fields("facts")
    rows = [[line(key), line(short_json(facts.any(key), _FACT_WIDTH))] for key in facts]
    if rows:
        show_table(console(), table(["FACT", "VALUE"], rows))
    else:
        console().print(line(f"No facts of {workflow}/{id}" + (f" begin with {prefix}." if prefix else ".")))


def show_outbox(response: Fields, workflow: str, id: str) -> None:
    out, events = console(), response.list("events")
    if not events:
        out.print(line(f"The outbox of {workflow}/{id} is empty."))
        return
    columns = ["EVENT", "STEP", "STATE", "SINCE (UTC)", "FAILED", "NEXT (UTC)", "ERROR", "PAYLOAD"]
    show_table(out, compact_table(columns, [_outbox_row(event) for event in events]))
    if any(event.text("state") == "parked" for event in events):
        out.print("\nDeliver parked events again with:")
        out.print(command("holdfast", "instances", "redeliver", "-w", workflow, "-i", id))


def _outbox_row(event: Fields) -> list[Text]:
    failed, payload = event.number("attempts"), event.any("payload")
    since = event.time("deliveredAt") or event.time("parkedAt") or event.time("createdAt")
    return [
        line(event.text("type")),
        line(event.text("step")),
        coloured(event.text("state")),
        line(timestamp(since)),
        line(str(failed) if failed else ""),
        line(timestamp(event.time("nextAttemptAt")) if failed else ""),
        line(event.text("error"), "red"),
        line("" if payload is None else short_json(payload)),
    ]


def show_redelivered(response: Fields, workflow: str, id: str) -> None:
    count = response.number("redelivered") or 0
    plural = "" if count == 1 else "s"
    outcome = f"{count} parked event{plural} will be delivered again" if count else "no event is parked"
    console().print(line(f"{workflow}/{id}: {outcome}."))

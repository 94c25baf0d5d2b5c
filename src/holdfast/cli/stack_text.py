"""The text of a stack."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.cli.response_fields import Fields


def stack_lines(pid: str, response: Fields) -> Iterator[str]:
    tasks = response.list("tasks")
    if not tasks:
        yield f"{pid} has no tasks: the run has ended, or has not started"
    else:
        yield pid
    for task in tasks:
        waiting = task.text("waitingFor")
        yield ""
        yield f"task {task.text('name')}" + (f", waiting for {waiting}" if waiting else "")
        for frame in task.list("frames"):
            yield f'  File "{frame.text("file")}", line {frame.any("line")}, in {frame.text("function")}'
            if frame.text("source"):
                yield f"    {frame.text('source')}"
            variables = frame.any("locals")
            for name, text in variables.items() if isinstance(variables, dict) else ():
                yield f"      {name} = {text}"
    if response.text("difference"):
        yield ""
        yield f"the code of the server does not fit the history: {response.text('difference')}"

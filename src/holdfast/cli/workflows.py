"""``holdfast workflows``: the workflows of a server. Uses HTTP only."""

from __future__ import annotations

import typer

from holdfast.cli.options import WorkflowName, remote_command
from holdfast.cli.remote import Remote

workflows = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@workflows.callback()
def about() -> None:
    """Show the workflows of a server.

    \b
    Examples:
      holdfast workflows list -b http://127.0.0.1:8787/api/workflows
      HOLDFAST_BASE_URL=https://shop.example/api/workflows holdfast workflows list
    """


@workflows.command(name="list")
@remote_command
def list_workflows(remote: Remote) -> None:
    """List the names of the workflows, in the order of their registration.

    \b
    Examples:
      holdfast workflows list -b http://127.0.0.1:8787/api/workflows
      holdfast workflows list -H 'Authorization: Bearer ...'    with $HOLDFAST_BASE_URL set
    """
    from holdfast.cli.output import console, line, show_table, table

    names = [item.text("name") for item in remote.get(expect="workflows").list("workflows")]
    if names:
        show_table(console(), table(["WORKFLOW"], [[line(name)] for name in names]))
    else:
        console().print("The server has no workflows.")


@workflows.command()
@remote_command
def mermaid(remote: Remote, workflow: WorkflowName) -> None:
    """Draw a graph as a Mermaid flowchart.

    \b
    Examples:
      holdfast workflows mermaid -w etl
      holdfast workflows mermaid -w etl > etl.mmd
    """
    from holdfast.cli.output import show_text

    show_text(remote.get_text(workflow, "mermaid"))

"""``holdfast init``: writes the files of a new project, from the templates in ``project/``."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from holdfast._version import __version__
from holdfast.cli.errors import WrongUsageError

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_FILES = {
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    "{name}/__init__.py": "package.py.txt",
    "{name}/workflows.py": "workflows.py.txt",
    "tests/test_workflows.py": "test_workflows.py.txt",
    "Dockerfile": "Dockerfile.txt",
    ".dockerignore": "dockerignore.txt",
    "compose.yaml": "compose.yaml.txt",
    "deploy/{name}-worker.service": "worker.service.txt",
}
"""The path of each file in the project, and its template. Templates end with .txt: tools would take them for code."""


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the project and its package.")],
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="PATH", help="The directory to write to. Default: ./NAME.")
    ] = None,
) -> None:
    """Make a project: an app with a workflow, tests, a Dockerfile, a compose file with PostgreSQL, a systemd unit.

    Existing files are never changed: if one of the files exists, nothing is written.

    \b
    Examples:
      holdfast init shop               in the new directory shop
      holdfast init shop --dir .       in this directory

    Exit code 0 if the files were written, 2 if the name is not valid or a file exists.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name in ("holdfast", "tests", "deploy"):
        raise WrongUsageError(
            f"{name!r} is not a name for a project: use lower case letters, digits and '_', and no word of Python"
        )
    folder = Path(name) if directory is None else directory
    targets = {folder / path.format(name=name): template for path, template in _FILES.items()}
    existing = [str(path) for path in targets if path.exists()]
    if existing:
        raise WrongUsageError(f"{', '.join(existing)}: exists already; nothing was written")
    for path, template in targets.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_filled(template, name))
    typer.echo(f"{len(targets)} files in {folder}. Next: cd {folder} && pip install -e '.[test]' && python -m pytest")


def _filled(template: str, name: str) -> str:
    text = files("holdfast.cli").joinpath("project", template).read_text("utf-8")
    return text.replace("@name@", name).replace("@version@", __version__)

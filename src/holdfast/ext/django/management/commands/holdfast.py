"""``manage.py holdfast COMMAND``: the commands of ``holdfast`` for the app of this project."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from holdfast.ext.django.project import database_url, project_app

_TARGET = "holdfast.ext.django:app"
_OF_APP = ("worker", "serve", "dev", "check", "replay", "simulate", "mcp", "reencrypt")
_OF_DATABASE = ("migrate", "doctor", "prune", "export")


class Command(BaseCommand):
    help = (
        "Runs Holdfast's commands for the app of this project: " + ", ".join((*_OF_APP, *_OF_DATABASE)) + ". "
        "Help of one: manage.py holdfast worker --help"
    )
    requires_system_checks: list[str] = []  # noqa: RUF012  (an attribute of Django's class)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("arguments", nargs="*", help="the command, and its options")

    def run_from_argv(self, argv: list[str]) -> None:
        """Pass the arguments on as they are: Django's parser would take options such as --verbosity itself."""
        if argv[2:3] in ([], ["-h"], ["--help"]):
            super().run_from_argv([*argv[:2], "--help"])
            return
        self._run(argv[2:])

    def handle(self, *_: Any, **options: Any) -> None:
        self._run(options["arguments"])

    def _run(self, arguments: list[str]) -> None:
        from holdfast.cli.main import main

        if not arguments or arguments[0] not in (*_OF_APP, *_OF_DATABASE):
            raise CommandError(f"use one of: {', '.join((*_OF_APP, *_OF_DATABASE))}")
        command, *others = arguments
        if command in _OF_APP:
            target = [_TARGET]
        else:
            schema = project_app().schema
            target = [database_url(), *([] if schema is None else ["--schema", schema])]
        before = sys.argv
        sys.argv = ["holdfast", command, *target, *others]
        try:
            main()
        except SystemExit as ended:
            if ended.code:
                raise
        finally:
            sys.argv = before

"""Errors of the command line that have an exit code of their own."""

from __future__ import annotations

from holdfast.errors import HoldfastError


class WrongUsageError(HoldfastError):
    """The command was given something it cannot work with. Exit code 2."""

    code = "WRONG_USAGE"


class CannotLoadError(WrongUsageError):
    """The user's module broke while it was imported."""

    code = "CANNOT_LOAD"


class MigrationError(HoldfastError):
    """The schema could not be brought, or is not, up to date."""

    code = "MIGRATION_FAILED"

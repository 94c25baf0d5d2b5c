"""Errors of the command line."""

from __future__ import annotations

from holdfast.errors import HoldfastError


class WrongUsageError(HoldfastError):
    """Invalid arguments of a command. Exit code 2."""

    code = "WRONG_USAGE"


class CannotLoadError(WrongUsageError):
    """Importing the user's module raised an exception."""

    code = "CANNOT_LOAD"


class MigrationError(HoldfastError):
    """The schema is not up to date, or the migration failed."""

    code = "MIGRATION_FAILED"


class TransferError(HoldfastError):
    """A transfer that cannot begin or end."""

    code = "TRANSFER_FAILED"

"""``holdfast migrate``: migrates the schema of a database, or checks it."""

from __future__ import annotations

import asyncio

from holdfast.cli.errors import MigrationError
from holdfast.cli.redaction import without_password
from holdfast.errors import HoldfastError
from holdfast.store_url import migrate, shown_url, verify


def bring_up_to_date(url: str, schema: str | None, *, check: bool) -> str:
    """Migrate or check the schema; return a line that describes the result.

    Every failure is a ``MigrationError`` whose text does not contain the password.
    """
    try:
        versions = asyncio.run((verify if check else migrate)(url, schema=schema))
    except Exception as error:
        text = str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        raise MigrationError(without_password(text, url)) from None
    name = without_password(shown_url(url), url)
    if versions.before == versions.after:
        return f"{name}: schema version {versions.after}, nothing to do"
    return f"{name}: schema migrated from version {versions.before} to {versions.after}"

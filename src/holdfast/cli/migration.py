"""``holdfast migrate``: brings a database's schema up to date, or only looks."""

from __future__ import annotations

import asyncio

from holdfast.app import migrate, shown_url, verify
from holdfast.cli.errors import MigrationError
from holdfast.cli.secret import without_password
from holdfast.errors import HoldfastError


def bring_up_to_date(url: str, schema: str | None, *, check: bool) -> str:
    """What was done, in a sentence. Whatever goes wrong is one error, without a password in it."""
    try:
        found = asyncio.run((verify if check else migrate)(url, schema=schema))
    except Exception as error:
        text = str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        raise MigrationError(without_password(text, url)) from None
    name = without_password(shown_url(url), url)
    if found.before == found.after:
        return f"{name}: schema version {found.after}, nothing to do"
    return f"{name}: schema brought from version {found.before} to {found.after}"

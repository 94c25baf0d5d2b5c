"""``holdfast reencrypt``: rewrites the stored values of an app's database under its first key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.app import Holdfast
from holdfast.errors import InvalidOptionError
from holdfast.payloads.reencrypt import Progress, Reencryption
from holdfast.payloads.store import PayloadStore
from holdfast.store_url import make_transfer


def reencrypt(app: Holdfast, say: Callable[[str], None]) -> bool:
    """Rewrite all values; ``say`` receives lines for the user. False: some values cannot be read by this app."""
    return asyncio.run(reencrypt_values(app, say))


async def reencrypt_values(app: Holdfast, say: Callable[[str], None]) -> bool:
    unreadable = 0

    def report(progress: Progress) -> None:
        nonlocal unreadable
        unreadable += progress.unreadable
        say(f"{progress.table}: {progress.rewritten} values")

    async with app.connect():
        store = app._opened().store  # noqa: SLF001  (the command works below the client)
        if not isinstance(store, PayloadStore):
            raise InvalidOptionError("the app has no key: give it codec=[Aes(keys)]")
        database = make_transfer(app.url, app.schema, app.runtime)
        await database.open()
        try:
            total = await Reencryption(store, database).run(report)
        finally:
            await database.close()
    say(f"{total} values were encrypted again")
    if unreadable:
        say(f"{unreadable} values cannot be read with the keys of this app, and stay as they are")
    return not unreadable

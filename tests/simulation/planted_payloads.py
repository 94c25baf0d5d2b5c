"""Bugs of blobs, as patches: the owner of an attribute, its name, and a function from the original to another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.payloads.blobs import Blobs
from holdfast.store.sqlite import blobs

Patches = list[tuple[Any, str, Callable[[Any], Any]]]


def _without_age(original: Any) -> Any:
    return {**original, "garbage": original["garbage"].replace("(used = 1 OR at <= ?1)", "?1 > 0")}


def _write_later(original: Any) -> Any:
    """Return at once, and write the blobs a little later."""

    async def write(store: Any, writes: Any) -> None:
        async def later() -> None:
            await asyncio.sleep(0.03)
            await original(store, writes)

        asyncio.get_running_loop().create_task(later()).add_done_callback(lambda done: done.exception())

    return write


BUGS: dict[str, Patches] = {
    "blob_deleted_too_early": [(blobs, "_SQL", _without_age)],
    "commit_before_blob": [(Blobs, "write", _write_later)],
}

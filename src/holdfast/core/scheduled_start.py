"""The tick of a run, read from its stored options. A module of its own, because few programs have schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from holdfast.core import codec, envelope
from holdfast.core.model import optional_from_ms

SCHEDULED_FOR, LAST_RESULT, MEMO, SEALED = "scheduledFor", "lastResult", "memo", "sealed"
"""Names in the stored options of a run. With a codec, the memo and the last result are in one envelope, SEALED."""


class Tick(NamedTuple):
    scheduled_for: datetime | None = None
    last_result: Any = None


_NO_TICK = Tick()


def tick_of(options: bytes | None) -> Tick:
    """The tick that started a run with these options, and the last successful result before it."""
    if options is None or SCHEDULED_FOR.encode() not in options:
        return _NO_TICK
    content = codec.plain_object(options, "value of the options")
    if SEALED in content:
        raise envelope.unreadable(content[SEALED].encode())
    last = content.get(LAST_RESULT)
    return Tick(optional_from_ms(content.get(SCHEDULED_FOR)), last[0] if last else None)

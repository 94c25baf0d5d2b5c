"""The part of the context that reads the time and sleeps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from datetime import UTC, datetime

from holdfast.core import durations
from holdfast.core.durations import Duration
from holdfast.core.model import from_ms, to_ms
from holdfast.core.names import check_step_name
from holdfast.errors import InvalidDurationError
from holdfast.workflow.channels import Channel
from holdfast.workflow.context_base import ContextBase
from holdfast.workflow.timers import Timer, ticks


class TimeContext(ContextBase):
    """Time, sleeps and timers."""

    def now(self) -> datetime:
        """The time of the last result or event that the code received, in UTC: the same on every replay."""
        return from_ms(self._machine.position.now_ms)

    def sleep(self, name: str, duration: Duration) -> Coroutine[None, None, None]:
        """Sleep durably, up to 365 days. A sleeping run occupies no worker slot, thread or connection."""
        machine = self._machine
        ms = durations.to_ms(duration, f"sleep {name!r}")
        self._check_sleep(name, ms)
        return machine.waits.sleep(check_step_name(name, machine.limits), lambda: machine.position.now_ms + ms)

    def sleep_until(self, name: str, when: datetime) -> Coroutine[None, None, None]:
        """Sleep until a time (an aware ``datetime``). A time in the past ends the sleep at once."""
        if not isinstance(when, datetime) or when.tzinfo is None:
            raise InvalidDurationError(f"sleep_until {name!r} needs an aware datetime, not {when!r}")
        machine = self._machine
        due = to_ms(when.astimezone(UTC))
        self._check_sleep(name, due - machine.position.now_ms)
        return machine.waits.sleep(check_step_name(name, machine.limits), lambda: due)

    def after(self, duration: Duration) -> Channel[datetime]:
        """A channel, for ``select``, that receives the time once, after the duration."""
        return self.timer(duration)

    def timer(self, duration: Duration) -> Timer:
        """Like ``after``, with methods to stop the timer and to set it again."""
        return Timer(self._timer_seconds(duration), self.now, self._timer_seconds)

    def every(self, duration: Duration) -> AsyncIterator[datetime]:
        """Yield the time at intervals: ``async for now in ctx.every("1 hour")``. Missed ticks are merged into one."""
        seconds = self._timer_seconds(duration)
        if seconds <= 0:
            raise InvalidDurationError(f"every needs a duration greater than 0, not {duration!r}")
        return ticks(seconds, self.now)

    def _timer_seconds(self, duration: Duration) -> float:
        ms = durations.to_ms(duration, "timer")
        self._check_sleep("timer", ms)
        return ms / 1000

    def _check_sleep(self, name: str, ms: int) -> None:
        longest = durations.to_ms(self._machine.limits.sleep)
        if ms > longest:
            raise InvalidDurationError(
                f"sleep {name!r} of {durations.describe(ms)} is longer than the limit of {durations.describe(longest)}"
            )

"""``Retention``: the time for which finished runs are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.core.checks import is_whole_number
from holdfast.core.durations import Duration, to_ms
from holdfast.core.model import Status
from holdfast.core.show import shown
from holdfast.errors import InvalidDurationError, InvalidOptionError


class RetentionRule(NamedTuple):
    """Runs with this status are kept for this time after their end."""

    status: Status
    age_ms: int


@dataclass(frozen=True, slots=True)
class Retention:
    """The time for which finished runs are kept, by their status. None keeps them for ever.

    ``keep``: the newest finished runs of each workflow that are kept whatever their age.
    """

    complete: Duration | None = None
    errored: Duration | None = None
    cancelled: Duration | None = None
    terminated: Duration | None = None
    keep: int = 0
    streams: Duration | None = None
    """The time for which the streams of finished runs are kept; None keeps them as long as their runs."""

    def __post_init__(self) -> None:
        for name in ("complete", "errored", "cancelled", "terminated", "streams"):
            value = getattr(self, name)
            try:
                ms = 0 if value is None else to_ms(value, name)
            except InvalidDurationError as error:
                raise InvalidOptionError(f"Retention({name}=): {error}") from None
            if ms < 0:
                raise InvalidOptionError(f"Retention({name}=) must not be negative")
        if not is_whole_number(self.keep, 0):
            raise InvalidOptionError(f"Retention(keep=) must be a whole number of at least 0, not {shown(self.keep)}")

    def rules(self) -> Iterator[RetentionRule]:
        for status in (Status.COMPLETE, Status.ERRORED, Status.CANCELLED, Status.TERMINATED):
            age = getattr(self, status.value)
            if age is not None:
                yield RetentionRule(status, to_ms(age))


def check_retention(value: object) -> Retention | None:
    if value is not None and not isinstance(value, Retention):
        raise InvalidOptionError(f"retention must be a Retention, not {shown(value)}")
    return value

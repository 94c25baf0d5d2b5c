"""Limits as code declares them: values, and the key of an attempt or a run.

The values are stored in the database when a worker starts, and can be changed there. The functions that compute keys
stay in the code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast.core.checks import check_flag, is_whole_number
from holdfast.core.durations import to_ms
from holdfast.core.rate import Rate
from holdfast.core.show import shown
from holdfast.errors import InvalidOptionError

if TYPE_CHECKING:
    from holdfast.store.protocol import LimitKey, LimitValues

_MAX_NAME = 64
_MAX_KEY = 200
_MAX_QUEUE = 200
_MAX_COUNT = 1_000_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Limit:
    """A declared limit (``app.limit``)."""

    name: str
    concurrency: int | None = None
    rate: Rate | None = None
    key: str | None = None
    """The field of the params, or the argument of the step, that has the key."""
    fair: bool = False
    weights: Mapping[str, float] | None = None
    key_function: Callable[..., Any] | None = None

    def by(self, function: Callable[..., Any]) -> Limit:
        """The same limit with keys that ``function`` computes.

        The function gets the params of a run, or the arguments of a step, and returns a text or a number.
        """
        if not callable(function):
            raise InvalidOptionError(f"limit {self.name!r}: by() needs a function, not {shown(function)}")
        return replace(self, key_function=function)

    def values(self) -> LimitValues:
        """The values in the store's form."""
        return limit_values(self.concurrency, self.rate, fair=self.fair, weights=self.weights)

    def of_params(self, params: Any, start_key: str | None) -> LimitKey:
        """The limit with the key of a run. ``start_key``: the start option ``key``."""
        if start_key is not None and (self.key is not None or self.key_function is not None):
            return self._keyed(start_key)
        if self.key_function is not None:
            return self._keyed(self.key_function(params))
        return self._keyed("" if self.key is None else _field(params, self.key))

    def of_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any], named: Mapping[str, Any]) -> LimitKey:
        """The limit with the key of a step call. ``named``: the arguments by the names of the parameters."""
        if self.key_function is not None:
            return self._keyed(self.key_function(*args, **kwargs))
        if self.key is None:
            return self._keyed("")
        if self.key in named:
            return self._keyed(named[self.key])
        found = [_field(value, self.key) for value in named.values() if _has_field(value, self.key)]
        return self._keyed(found[0] if found else "")

    def _keyed(self, value: Any) -> LimitKey:
        from holdfast.store.protocol import LimitKey  # noqa: PLC0415  (only where a limit is used)

        return LimitKey(self.name, key_text(value))


@dataclass(frozen=True, slots=True)
class DeclaredQueue:
    """A declared queue (``app.queue``)."""

    name: str
    paused: bool = False
    limit: Limit | None = None
    """The limit of the runs and nodes of the queue that are executed at the same time."""
    keys: Limit | None = None
    """The fair limit under whose keys runs share the queue: the start option ``key``."""

    def limits_of(self, start_key: str | None) -> list[LimitKey]:
        """The limits of a run in this queue. ``start_key``: the start option ``key``."""
        from holdfast.store.protocol import LimitKey  # noqa: PLC0415  (only where a limit is used)

        found = [] if self.limit is None else [LimitKey(self.limit.name)]
        return found if self.keys is None else [*found, LimitKey(self.keys.name, key_text(start_key or ""))]


def limit_values(
    concurrency: int | None, rate: Rate | None, *, fair: bool, weights: Mapping[str, float] | None
) -> LimitValues:
    from holdfast.store.protocol import LimitValues, Pace  # noqa: PLC0415  (only where a limit is used)

    pace = None if rate is None else Pace(rate.count, to_ms(rate.per, "per"), rate.burst or rate.count)
    return LimitValues(concurrency, pace, fair, {key: float(weight) for key, weight in (weights or {}).items()})


def check_limit(limit: Limit) -> Limit:
    """Check the values of a limit."""
    if not isinstance(limit.name, str) or not 0 < len(limit.name) <= _MAX_NAME or not limit.name.isprintable():
        raise InvalidOptionError(f"the name of a limit has 1 to {_MAX_NAME} characters, not {shown(limit.name)}")
    check_values(limit.concurrency, limit.rate)
    if limit.key is not None and not isinstance(limit.key, str):
        raise InvalidOptionError(f"key must be the name of a field, not {shown(limit.key)}; see limit.by()")
    check_flag("fair", limit.fair)
    if limit.weights is not None and not isinstance(limit.weights, Mapping):
        raise InvalidOptionError(f"weights must map keys to positive numbers, not {shown(limit.weights)}")
    for key, weight in (limit.weights or {}).items():
        if not isinstance(key, str) or not isinstance(weight, int | float) or not 0 < weight < _MAX_COUNT:
            raise InvalidOptionError(f"weights must map keys to positive numbers, not {shown(key)} to {shown(weight)}")
    return limit


def check_values(concurrency: Any, rate: Any) -> None:
    if concurrency is not None and not is_whole_number(concurrency, 0, _MAX_COUNT):
        raise InvalidOptionError(
            f"concurrency must be a whole number from 0 to {_MAX_COUNT:,}, or None, not {shown(concurrency)}"
        )
    if rate is not None and not isinstance(rate, Rate):
        raise InvalidOptionError(f"rate must be a Rate, such as Rate(10, per='1 second'), not {shown(rate)}")


def check_limits(what: str, limits: Any) -> tuple[Limit, ...]:
    """Check the ``limits=`` of a step, workflow or node."""
    if isinstance(limits, Limit) or not isinstance(limits, Iterable):
        raise InvalidOptionError(f"{what}: limits must be a list of limits (app.limit), not {shown(limits)}")
    found = tuple(limits)
    for limit in found:
        if not isinstance(limit, Limit):
            raise InvalidOptionError(f"{what}: limits must be a list of limits (app.limit); {shown(limit)} is none")
    return found


def check_queue(queue: Any) -> str:
    if not isinstance(queue, str) or not 0 < len(queue) <= _MAX_QUEUE or not queue.isprintable():
        raise InvalidOptionError(f"queue must be a name of 1 to {_MAX_QUEUE} printable characters, not {shown(queue)}")
    return queue


def key_of(key: str | Callable[[Any], Any] | None, params: Any) -> str:
    """The key of params: a field of them, or the value of a function."""
    if key is None:
        return ""
    return key_text(_field(params, key) if isinstance(key, str) else key(params))


def key_text(value: Any) -> str:
    """A key as text that both stores can keep."""
    return str(value).encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")[:_MAX_KEY]


def _has_field(value: Any, name: str) -> bool:
    return name in value if isinstance(value, Mapping) else hasattr(value, name)


def _field(value: Any, name: str) -> Any:
    """The field of a mapping or an object; empty if there is none."""
    return value.get(name, "") if isinstance(value, Mapping) else getattr(value, name, "")

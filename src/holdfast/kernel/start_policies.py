"""Checks of start policies, and their conversion to the requests of the store."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core import codec
from holdfast.core.checks import check_enum
from holdfast.core.durations import option_ms, timeout_ms
from holdfast.core.limits import Limits
from holdfast.core.show import shown
from holdfast.core.start_policies import Debounce, Dedupe
from holdfast.errors import InvalidOptionError
from holdfast.kernel.flow import key_of, key_text
from holdfast.store.protocol import (
    BatchedStart,
    DebouncedStart,
    LimitedStart,
    LimitKey,
    NewRun,
    OnReuse,
    OnSingleton,
    SingletonStart,
)

if TYPE_CHECKING:
    from holdfast.kernel.definition import Definition
    from holdfast.kernel.flow import Limit

MAX_KEY_LENGTH = 200
_ON_LIMIT = ("wait", "drop", "reject")


class PolicyOptions(NamedTuple):
    """The start options that are policies."""

    dedupe: Any = None
    singleton: Any = None
    debounce: Any = None
    on_limit: Any = "wait"


NO_POLICIES = PolicyOptions()


def check_key(key: Any) -> str | None:
    if key is not None and (not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_LENGTH):
        raise InvalidOptionError(f"key must be text of 1 to {MAX_KEY_LENGTH} characters, not {shown(key)}")
    return key


def apply_policies(
    new: NewRun, policies: PolicyOptions, key: str | None, *, chosen_id: bool, delayed: bool, repeats: bool
) -> None:
    """Add the policy of a start to its request.

    ``chosen_id``: the caller chose an id or its policies. ``delayed``: the start has a delay. ``repeats``: the
    start has a cron text.
    """
    dedupe, singleton, debounce, on_limit = policies
    if on_limit not in _ON_LIMIT:
        raise InvalidOptionError(f"on_limit must be 'wait', 'drop' or 'reject', not {shown(on_limit)}")
    given = [name for name, value in zip(PolicyOptions._fields, policies, strict=True) if value not in (None, "wait")]
    if len(given) > 1:
        raise InvalidOptionError(f"{' and '.join(given)} exclude each other; give one of them")
    if new.start_events and given != ["dedupe"]:
        raise InvalidOptionError(f"{given[0]} and messages exclude each other")
    if chosen_id and given in (["dedupe"], ["debounce"]):
        raise InvalidOptionError(f"{given[0]} excludes id, on_conflict and on_reuse")
    if dedupe is not None:
        _deduplicate(new, dedupe)
    elif singleton is not None:
        new.policy = SingletonStart(key_text(check_key(key) or ""), check_enum("singleton", singleton, OnSingleton))
    elif debounce is not None:
        if delayed or repeats:
            raise InvalidOptionError("debounce excludes delay, start_at and cron")
        _debounce(new, debounce, key)
    elif delayed or repeats:
        raise InvalidOptionError(f"on_limit={on_limit!r} excludes delay, start_at and cron: it is decided at once")


def _deduplicate(new: NewRun, dedupe: Any) -> None:
    """All starts with the key share an id. The uniqueness of ids makes concurrent starts one run."""
    if not isinstance(dedupe, Dedupe):
        raise InvalidOptionError(f"dedupe must be a Dedupe, such as Dedupe('order-1'), not {shown(dedupe)}")
    if check_key(dedupe.key) is None:
        raise InvalidOptionError("Dedupe(key) must be text")
    new.reuse_after_ms = 0 if dedupe.period is None else timeout_ms("period", dedupe.period)
    new.instance_id = f"dedupe-{hashlib.sha256(dedupe.key.encode('utf-8', 'backslashreplace')).hexdigest()[:32]}"
    new.on_reuse = OnReuse.ALLOW


def _debounce(new: NewRun, debounce: Any, key: str | None) -> None:
    chosen = debounce if isinstance(debounce, Debounce) else Debounce(debounce)
    new.delay_ms = timeout_ms("debounce", chosen.wait)
    max_wait = None if chosen.max_wait is None else timeout_ms("max_wait", chosen.max_wait)
    new.policy = DebouncedStart(key_text(check_key(key if chosen.key is None else chosen.key) or ""), max_wait)


def add_batch(new: NewRun, definition: Definition, item: Any, key: str | None, limits: Limits) -> None:
    """Make the start one item of a batch."""
    batch = definition.batch
    if batch is None:
        return
    new.delay_ms = option_ms("wait", batch.wait)
    new.policy = BatchedStart(key_of(batch.key, item) if key is None else key_text(key), batch.size, limits.params)


def fair_key_of(new: NewRun, definition: Definition, of_queue: Limit | None, key: str | None) -> LimitKey | None:
    """The fair limit of a run that is due at once, and its key. None: the run begins in the order of the starts.

    ``of_queue``: the fair limit of the queue.
    """
    fair = [limit for limit in definition.limits if limit.fair]
    if new.policy is not None or new.delay_ms or new.units or new.pin or not (fair or of_queue):
        return None
    if of_queue is not None:
        return LimitKey(of_queue.name, key_text(key or ""))
    try:
        return fair[0].of_params(definition.decode_params(codec.plain(new.params)), key)
    except Exception:
        return None


def limited_start(
    new: NewRun, definition: Definition, of_queue: Sequence[LimitKey], key: str | None, on_limit: str
) -> None:
    """Make the start depend on the room of the limits of its run."""
    # The limits of a graph belong to its nodes.
    limits = [] if new.units else [*definition.limits_of(new.params, key), *of_queue]
    if not limits:
        raise InvalidOptionError(
            f"on_limit={on_limit!r} needs a limit: workflow {definition.name!r} and its queue have none"
        )
    new.policy = LimitedStart(limits, reject=on_limit == "reject", until_end=definition.hold == "until_end")

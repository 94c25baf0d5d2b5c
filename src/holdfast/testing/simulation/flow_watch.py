"""Checks of flow control after every operation: limits, permits, singletons and pending runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.testing.simulation.watch import Rows

_READS = frozenset({"read", "limits"})

_EXCEEDED = """
SELECT u.name, u.key, u.used, l.concurrency FROM holdfast_limit_use AS u JOIN holdfast_limit AS l ON l.name = u.name
 WHERE u.used > l.concurrency"""
_MISCOUNTED = """
SELECT u.name, u.key, u.used, (
           SELECT count(*) FROM holdfast_permit AS p JOIN holdfast_permit_group AS g ON g.id = p.grp
            WHERE p.state > 0 AND EXISTS (SELECT 1 FROM json_each(g.limits) AS item
                                           WHERE item.value ->> 0 = u.name AND item.value ->> 1 = u.key)) AS counted
  FROM holdfast_limit_use AS u WHERE u.used <> counted"""
_LEAKED = """
SELECT p.run, p.unit, p.step FROM holdfast_permit AS p
  LEFT JOIN holdfast_task AS t ON t.run = p.run AND t.unit = p.unit
 WHERE t.run IS NULL OR (p.owner IS NOT NULL AND p.until_end = 0 AND (t.owner IS NOT p.owner OR t.epoch <> p.epoch))"""
_STARVED = """
SELECT g.name, g.key, g.waiting FROM holdfast_permit_group AS g
  JOIN holdfast_limit AS l ON l.name = g.name
  LEFT JOIN holdfast_limit_use AS u ON u.name = g.name AND u.key = g.key
 WHERE g.waiting > 0 AND coalesce(u.freed, 0) = 0 AND l.rate_count IS NULL
   AND coalesce(u.used, 0) < coalesce(l.concurrency, 1)"""
_TOO_FAST = """
SELECT u.name, u.key FROM holdfast_limit_use AS u JOIN holdfast_limit AS l ON l.name = u.name
 WHERE l.rate_count IS NOT NULL AND u.used > 0
   AND u.tat > ?1 * 1000 + l.burst * ((l.rate_ms * 1000 + l.rate_count - 1) / l.rate_count)"""
_FORGOTTEN_KEY = """
SELECT t.workflow, t.fair_key FROM holdfast_task AS t INDEXED BY holdfast_task_fair
 WHERE t.bucket = 3 AND t.owner IS NULL AND t.run_at IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM holdfast_fair_key AS k
                    WHERE k.queue = t.queue AND k.workflow = t.workflow AND k.key = t.fair_key)"""
_TWO_SINGLETONS = """
SELECT workflow, single, count(*) FROM holdfast_task
 WHERE single IS NOT NULL AND held_at IS NULL GROUP BY workflow, single HAVING count(*) > 1"""
_FORGOTTEN_SINGLETON = """
SELECT h.workflow, h.single FROM holdfast_task AS h
 WHERE h.held_at IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM holdfast_task AS t
                    WHERE t.workflow = h.workflow AND t.single = h.single AND t.held_at IS NULL)"""

_CHECKS = (
    (_EXCEEDED, "limit {0!r} of key {1!r} is exceeded: {2} of {3}"),
    (_MISCOUNTED, "limit {0!r} of key {1!r} counts {2} permits, and there are {3}"),
    (_LEAKED, "a permit of run {0}, unit {1}, step {2!r} outlived the ownership of its task"),
    (_STARVED, "{2} permits wait for limit {0!r} of key {1!r}, which has room"),
    (_FORGOTTEN_KEY, "a run of {0!r} with key {1!r} waits, but the key is never served"),
    (_TWO_SINGLETONS, "{2} singletons of {0!r} with key {1!r} are executed"),
    (_FORGOTTEN_SINGLETON, "a singleton of {0!r} with key {1!r} waits although none is executed"),
)


class FlowWatch:
    """Checks the rows of flow control after each write. ``now_ms`` returns the database's time."""

    def __init__(self, rows: Rows, now_ms: Callable[[], int]) -> None:
        self._rows = rows
        self._now_ms = now_ms

    def before(self, _operation: str, _args: tuple[Any, ...]) -> Any:
        return None

    def after(self, operation: str, _args: tuple[Any, ...], _answer: Any, _before: Any) -> Iterator[str]:
        if operation in _READS:
            return
        [(used,)] = self._rows(
            "SELECT EXISTS (SELECT 1 FROM holdfast_limit_use) OR EXISTS (SELECT 1 FROM holdfast_task INDEXED BY "
            "holdfast_task_single WHERE single IS NOT NULL AND held_at IS NULL) OR EXISTS (SELECT 1 FROM holdfast_task "
            "INDEXED BY holdfast_task_held WHERE held_at IS NOT NULL)"
        )
        if not used:
            return
        for sql, text in _CHECKS:
            for row in self._rows(sql):
                yield text.format(*row)
        for name, key in self._rows(_TOO_FAST, self._now_ms()):
            yield f"limit {name!r} of key {key!r} has granted more than its burst"

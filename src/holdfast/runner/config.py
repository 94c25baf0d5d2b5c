"""``WorkerConfig``: the settings of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from holdfast.core.checks import is_whole_number
from holdfast.core.durations import Duration, to_ms
from holdfast.core.names import check_version
from holdfast.errors import InvalidDurationError, InvalidOptionError


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Settings of the worker in this process."""

    concurrency: int = 1000
    """Maximum number of tasks that the worker owns at the same time."""
    lease: Duration = "30 seconds"
    """Time for which a task stays owned without a heartbeat; then another worker takes it over."""
    poll: Duration = "1 second"
    """Interval of polling for due tasks that no notification announced."""
    drain: Duration = "30 seconds"
    """Maximum time for which a stopping worker waits for steps in flight."""
    queues: tuple[str, ...] | Mapping[str, int] = ("default",)
    """The queues that the worker claims from. A mapping gives each queue a share of the slots (``concurrency``), which
    no other queue takes: ``{"bulk": 20, "default": 80}``."""
    cache: int = 1000
    """Suspended runs kept in memory, so that they wake without a replay."""
    max_losses: int = 10
    """Number of consecutive losses after which a run is parked."""
    replay: Literal["lenient", "strict"] = "lenient"
    """``"strict"`` parks a run of any workflow where ``"lenient"`` writes a warning about a step that may have been
    renamed."""
    stall: Duration | None = "1 second"
    """Log a call that blocks the event loop for longer than this, with its step or workflow; None: do not check."""
    version: str | None = None
    """The release of this program, for example ``"2026-11-16"``: runs record it, and pinned runs finish on it."""

    def __post_init__(self) -> None:
        for name, least in (("concurrency", 1), ("cache", 0), ("max_losses", 1)):
            value = getattr(self, name)
            if not is_whole_number(value, least):
                raise InvalidOptionError(f"WorkerConfig({name}=) must be an int of at least {least}, not {value!r}")
        for name in ("lease", "poll", "drain", *(() if self.stall is None else ("stall",))):
            self._check_duration(name)
        if isinstance(self.queues, str) or not all(isinstance(q, str) and q for q in self.queues):
            raise InvalidOptionError(f"WorkerConfig(queues=) must be a tuple of names, not {self.queues!r}")
        if isinstance(self.queues, Mapping) and not all(is_whole_number(n, 1) for n in self.queues.values()):
            raise InvalidOptionError(f"WorkerConfig(queues=): shares must be positive ints, not {self.queues!r}")
        if self.replay not in ("lenient", "strict"):
            raise InvalidOptionError(f"WorkerConfig(replay=) must be 'lenient' or 'strict', not {self.replay!r}")
        if self.version is not None:
            check_version("WorkerConfig(version=)", self.version)

    def _check_duration(self, name: str) -> None:
        try:
            ms = to_ms(getattr(self, name), name)
        except InvalidDurationError as error:
            raise InvalidOptionError(f"WorkerConfig({name}=): {error}") from None
        if ms <= 0 and name != "drain":
            raise InvalidOptionError(f"WorkerConfig({name}=) must be greater than 0")

    @property
    def queue_names(self) -> tuple[str, ...]:
        return tuple(self.queues)

    @property
    def queue_slots(self) -> dict[str, int] | None:
        """The number of slots of each queue, at least one; None: the queues have no shares."""
        if not isinstance(self.queues, Mapping):
            return None
        total = sum(self.queues.values())
        return {queue: max(1, self.concurrency * share // total) for queue, share in self.queues.items()}

    @property
    def lease_ms(self) -> int:
        return to_ms(self.lease)

    @property
    def poll_ms(self) -> int:
        return to_ms(self.poll)

    @property
    def drain_ms(self) -> int:
        return to_ms(self.drain)

    @property
    def stall_ms(self) -> int | None:
        return None if self.stall is None else to_ms(self.stall)

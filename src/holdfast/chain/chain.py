"""``Chain``, a named list of steps, and the driver that opens machines for its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from holdfast.chain.call import Handler
from holdfast.chain.machine import DEFAULT_BACKOFF, ChainMachine
from holdfast.chain.progress import CHAIN
from holdfast.chain.values import ChainTask
from holdfast.core import codec
from holdfast.core.checks import check_count
from holdfast.core.durations import Duration, describe, to_ms
from holdfast.core.functions import check_handler, is_async
from holdfast.core.limits import Limits
from holdfast.core.model import StepType
from holdfast.core.names import check_step_name, check_workflow_name
from holdfast.core.retry import Retry
from holdfast.core.show import shown
from holdfast.errors import DefinitionError, InvalidOptionError
from holdfast.kernel.definition import Blueprint, Definition
from holdfast.kernel.flow import Limit, check_limits
from holdfast.kernel.logger import StepLogger
from holdfast.kernel.requests import Requests
from holdfast.kernel.startable import In, Startable
from holdfast.store.protocol import Fact, FactState, RunRecord, Snapshot

if TYPE_CHECKING:
    from holdfast.chain.inspection import ChainInspection
    from holdfast.core.redaction import Redaction
    from holdfast.kernel.inspection import Subject

F = TypeVar("F", bound=Callable[[ChainTask], Any])

DEFAULT_MAX_ATTEMPTS = 5
SHORTEST_LEASE_MS = 100
"""A shorter lease could expire between two heartbeats of a busy worker."""
_MAX_COUNT = 2**31 - 1


class ChainProgram:
    """The steps of a chain with their handlers. Opens machines for existing runs and creates the plan of new ones."""

    def __init__(self, name: str, params: Any, limits: Limits, now: Callable[[], datetime]) -> None:
        self.name = name
        self.limits = limits
        self.log = StepLogger(limits, now)
        self.decode_params = codec.decoder(params)
        self._plan: list[Fact] = []
        self._handlers: dict[str, Handler] = {}

    def open(
        self,
        run: RunRecord,
        snapshot: Snapshot | None,
        requests: Requests,
        *,
        strict: bool = False,
    ) -> ChainMachine:
        if snapshot is None:
            raise RuntimeError(f"the plan of {run.pid} was not read")
        return ChainMachine(self, run, snapshot)

    def inspect(self, subject: Subject, _requests: Requests, redaction: Redaction) -> ChainInspection:
        from holdfast.chain.inspection import ChainInspection  # noqa: PLC0415  (loaded to look at runs)

        return ChainInspection(self, subject, redaction)

    def handler(self, step_type: str) -> Handler | None:
        return self._handlers.get(step_type)

    @property
    def steps(self) -> tuple[str, ...]:
        return tuple(self._handlers)

    def check_new(self, step_type: str) -> None:
        if step_type in self._handlers:
            raise DefinitionError(f"chain {self.name!r} has a step {step_type!r} already; give it another type")
        if len(self._plan) >= self.limits.steps:
            raise DefinitionError(f"chain {self.name!r} has {len(self._plan)} steps; more are not allowed")

    def add(
        self,
        step_type: str,
        handler: Handler,
        *,
        max_attempts: int,
        lease_ms: int | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        self.check_new(step_type)
        lease = None if lease_ms is None else codec.encode({"leaseMs": lease_ms}, what="lease")
        planned = Fact(
            FactState.PLAN, step_type, len(self._plan), StepType.DO, 0, 0,
            value=lease, max_attempts=max_attempts, timeout_ms=timeout_ms,
        )  # fmt: skip
        self._plan.append(planned)
        self._handlers[step_type] = handler

    def blueprint(self, now_ms: int) -> Blueprint:
        """The plan of a run that starts at ``now_ms``."""
        if not self._plan:
            raise DefinitionError(f"chain {self.name!r} has no steps; add them with its step() decorator")
        return Blueprint([planned._replace(at=now_ms, started_at=now_ms) for planned in self._plan])


class Chain(Startable[In, Any]):
    """A linear workflow: its steps run one after the other, in the order of their definition.

    A run stores the list of steps at its start and keeps to that list, even if the chain is changed later.

    Example::

        orders = app.chain("order.process", version=2)

        @orders.step("VALIDATE", max_attempts=5, lease="60 seconds")
        async def validate(task: ChainTask) -> Outcome:
            return Completed({"ok": True})
    """

    BACKOFF: ClassVar[Retry] = DEFAULT_BACKOFF
    """Delay before the next attempt of a step whose handler raised."""

    def __init__(self, name: str, version: int, program: ChainProgram) -> None:
        self.name = name
        self.version = version
        self._program = program

    def __repr__(self) -> str:
        return f"<Chain {self.name} version {self.version}: {' > '.join(self.steps) or 'no steps'}>"

    @property
    def steps(self) -> tuple[str, ...]:
        """The types of the chain's steps, in order."""
        return self._program.steps

    def step(
        self,
        step_type: str,
        *,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        lease: Duration | None = None,
        timeout: Duration | None = None,
        limits: Iterable[Limit] = (),
    ) -> Callable[[F], F]:
        """Add a step. The decorated function, ``async`` or plain, is its handler.

        ``max_attempts``: number of failed attempts after which the step is dead. ``lease``: time for which the step
        stays claimed without a heartbeat. A running worker renews the lease as long as the handler runs. After the loss
        of a worker, another one takes over the step when the lease has expired, and the lost attempt counts as failed
        with ``LEASE_EXPIRED``. None: the worker's lease (``WorkerConfig(lease=)``). ``timeout``: maximum duration of
        one attempt. An attempt that takes longer is cancelled and fails with ``StepTimeoutError``. None: no limit.
        ``limits``: limits under which the handler runs; their keys come from the params of the run.
        """
        check_step_name(step_type, self._program.limits)
        self._program.check_new(step_type)
        check_count("max_attempts", max_attempts, _MAX_COUNT)
        lease_ms = _optional_ms("lease", lease, SHORTEST_LEASE_MS)
        timeout_ms = _optional_ms("timeout", timeout, 1)
        checked_limits = check_limits(f"step {step_type!r}", limits)

        def register(function: F) -> F:
            if not callable(function):
                raise DefinitionError(f"step {step_type!r} needs a function, not {shown(function)}")
            check_handler(f"step {step_type!r} of chain {self.name!r}", function)
            handler = Handler(function, is_async(function), checked_limits)
            self._program.add(step_type, handler, max_attempts=max_attempts, lease_ms=lease_ms, timeout_ms=timeout_ms)
            return function

        return register


def define(
    name: str, version: int, params: Any, *, limits: Limits, now: Callable[[], datetime]
) -> tuple[Chain[Any], Definition]:
    """A chain without steps, and its definition."""
    check_workflow_name(name, limits)
    check_count("version", version, _MAX_COUNT)
    program = ChainProgram(name, params, limits, now)
    definition = Definition(
        name=name,
        kind=CHAIN,
        driver=program,
        decode_params=codec.decoder(params, exact=True),
        decode_output=_unchanged,
        params_type=params,
        version=version,
        blueprint=program.blueprint,
        inspect=program.inspect,
    )
    return Chain(name, version, program), definition


def _optional_ms(name: str, duration: Duration | None, min_ms: int) -> int | None:
    if duration is None:
        return None
    ms = to_ms(duration, name)
    if ms < min_ms:
        raise InvalidOptionError(f"{name} must be at least {describe(min_ms)}, not {shown(duration)}")
    return ms


def _unchanged(value: Any) -> Any:
    return value

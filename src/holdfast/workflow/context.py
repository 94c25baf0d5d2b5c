"""``Context``: the API of workflow code. A thin, typed layer over the machine.

Methods for time, messages and other runs are in its base classes; this class has the steps and the run itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from random import Random
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    TypeVarTuple,
    Unpack,
    overload,
)

from holdfast.core.durations import Duration
from holdfast.core.names import check_step_name
from holdfast.core.retry import Retry
from holdfast.kernel.attempt import StepTx, Transaction
from holdfast.kernel.startable import In, Out, Startable
from holdfast.workflow.context_messages import MessageContext
from holdfast.workflow.context_runs import OtherRunsContext
from holdfast.workflow.context_time import TimeContext
from holdfast.workflow.continue_as_new import ContinueAsNew
from holdfast.workflow.loop import running_loop
from holdfast.workflow.run_info import RunInfo
from holdfast.workflow.saga import Saga
from holdfast.workflow.steps import spec_of

if TYPE_CHECKING:
    from holdfast.workflow.code_streams import CodeStream

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")
Raises: TypeAlias = tuple[type[BaseException], ...] | None


@dataclass(eq=False)
class Workflow(Startable[In, Out]):
    """A registered workflow function, as ``app.start`` and ``ctx.run`` take it. ``fn`` is the plain function.

    ``Workflow[Order, str]`` takes an ``Order`` and returns a ``str``; ``Workflow[None, str]`` takes no input.
    """

    name: str
    fn: Callable[..., Coroutine[Any, Any, Out]] = field(repr=False)


class OptionalInput(Protocol[In, Out]):
    """A workflow function whose input has a default: ``async def fn(ctx, params=...)``."""

    def __call__(self, ctx: Context, params: In = ..., /) -> Coroutine[Any, Any, Out]: ...


class Context(TimeContext, MessageContext, OtherRunsContext):
    """The first argument of a workflow function.

    Example::

        @app.workflow
        async def fulfil(ctx: Context, order: Order) -> str:
            payment = await charge(order)
            await ctx.sleep("cool off", "1 hour")
            approval = await ctx.wait_for_event("approval", type="approval")
            return await ctx.do("note", write_note, payment, approval.payload)
    """

    # --- steps

    # Type checkers check every argument of a call without options, and the positional ones of a call with options: a
    # ParamSpec allows no further keywords. The second four overloads are for functions whose first parameter is the
    # step's transaction.

    @overload
    def do(
        self, name: str, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[None, None, R]: ...

    @overload
    def do(self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[None, None, R]: ...

    @overload
    def do(
        self, name: str, fn: Callable[[Unpack[Ts]], Awaitable[R]], /, *args: *Ts,
        retry: Retry | None = ..., timeout: Duration | None = ..., raises: Raises = ..., **kwargs: Any,
    ) -> Coroutine[None, None, R]: ...  # fmt: skip

    @overload
    def do(
        self, name: str, fn: Callable[[Unpack[Ts]], R], /, *args: *Ts,
        retry: Retry | None = ..., timeout: Duration | None = ..., raises: Raises = ..., **kwargs: Any,
    ) -> Coroutine[None, None, R]: ...  # fmt: skip

    @overload
    def do(
        self,
        name: str,
        fn: Callable[Concatenate[StepTx, P], Awaitable[R]] | Callable[Concatenate[Transaction, P], Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[None, None, R]: ...

    @overload
    def do(
        self, name: str, fn: Callable[Concatenate[StepTx, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[None, None, R]: ...

    @overload
    def do(
        self, name: str,
        fn: Callable[[StepTx, Unpack[Ts]], Awaitable[R]] | Callable[[Transaction, Unpack[Ts]], Awaitable[R]],
        /, *args: *Ts,
        retry: Retry | None = ..., timeout: Duration | None = ..., raises: Raises = ..., **kwargs: Any,
    ) -> Coroutine[None, None, R]: ...  # fmt: skip

    @overload
    def do(
        self, name: str, fn: Callable[[StepTx, Unpack[Ts]], R], /, *args: *Ts,
        retry: Retry | None = ..., timeout: Duration | None = ..., raises: Raises = ..., **kwargs: Any,
    ) -> Coroutine[None, None, R]: ...  # fmt: skip

    def do(  # type: ignore[misc]  # mypy: the keywords of a ParamSpec may have the names of the options
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        raises: Raises = None,
        **kwargs: Any,
    ) -> Coroutine[None, None, Any]:
        """Run a callable as a step whose key is ``name``. A second call returns the recorded result."""
        machine = self._machine
        return machine.steps.call_named(name, spec_of(fn).with_options(retry, timeout, raises), args, kwargs)

    def call(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        raises: Raises = None,
        **kwargs: Any,
    ) -> Coroutine[None, None, Any]:
        """Run a callable as a step that may be repeated: the key is ``name``, then ``name#2``, ``name#3``.

        For libraries that run steps on behalf of the code, such as the tool calls of an agent.
        """
        spec = spec_of(fn).with_options(retry, timeout, raises)
        return self._machine.steps.call(
            check_step_name(name, self._machine.limits), spec, args, kwargs, registered=False
        )

    # --- the run

    def continue_as_new(self, params: Any = None) -> ContinueAsNew:
        """An exception to raise: it ends this run and starts its successor with these params and an empty history.

        The successor has the same id, and inherits messages that were not received, children and watches.
        """
        return ContinueAsNew(self._machine.program.encode_params(params))

    # --- attributes

    def set_search(self, **values: Any) -> None:
        """Set attributes by which ``app.list(search=...)`` finds this run."""
        self._machine.attributes.set_search(values)

    def set_memo(self, **values: Any) -> None:
        """Set memo values that are shown with this run."""
        self._machine.attributes.set_memo(values)

    def stream(self, name: str) -> CodeStream:
        """A durable stream of this run, to write to. Readers use ``run.stream(name)``."""
        from holdfast.workflow.code_streams import CodeStream  # noqa: PLC0415  (loaded to run workflows, not to define them)

        return CodeStream(self._machine.streams, self._machine.loop, name)

    @property
    def values(self) -> Mapping[str, Any]:
        """The context that this run was started with. Its steps and children get it too."""
        return self._machine.values

    # --- changes

    def version(self, change_id: str, min_supported: int, max_supported: int) -> int:
        """The version of a change for this run.

        It is ``max_supported`` for a new run, and ``min_supported`` for a run that passed this place before the call
        was added. The version is recorded, and stays the same for the run, even if the code has other bounds later.
        """
        return self._machine.versions.choose(change_id, min_supported, max_supported)

    def saga(self) -> Saga:
        """A saga: undo steps run if its block fails: ``async with ctx.saga() as saga: saga.add(refund, payment)``."""
        return Saga(self._machine.steps)

    # --- information and randomness

    @property
    def info(self) -> RunInfo:
        machine = self._machine
        return RunInfo.of(machine.run, machine.position)

    @property
    def random(self) -> Random:
        """A random generator seeded by the run: it returns the same numbers on every replay."""
        return self._machine.randomness.generator

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._machine.randomness.draw_bytes(16), version=4)

    def random_bytes(self, n: int) -> bytes:
        return self._machine.randomness.draw_bytes(n)


_current_context: ContextVar[Context | None] = ContextVar("holdfast_context", default=None)


def in_workflow_code() -> bool:
    """True in the code of a workflow, False in its steps and everywhere else."""
    return running_loop() is not None


def current_context() -> Context:
    """The context of the run whose workflow code is calling, for libraries that do not get ``ctx`` as an argument.

    Raises ``RuntimeError`` in steps and outside workflows.
    """
    context = _current_context.get()
    if context is None or not in_workflow_code():
        raise RuntimeError("current_context() needs workflow code; in a step use step_info()")
    return context


def enter(context: Context) -> None:
    """Make a context the current one of this task and the tasks that it creates."""
    _current_context.set(context)

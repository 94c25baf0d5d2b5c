"""Steps: what a step function is, and how a call of one becomes durable inside workflow code."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, ParamSpec, TypeVar

from holdfast.core import codec
from holdfast.core.durations import Duration, to_ms
from holdfast.core.functions import Arguments, Unresolved, check_no_generator, closure_of, is_async, type_hints
from holdfast.core.retry import Retry
from holdfast.core.typed import check_annotation
from holdfast.errors import InvalidOptionError
from holdfast.kernel.attempt import StepTx, Transaction
from holdfast.workflow.loop import running_loop

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

DEFAULT_RETRY = Retry()
DEFAULT_TIMEOUT = "10 minutes"
_ANY_ARGUMENTS = Arguments(None)


@dataclass(slots=True, eq=False)
class StepSpec:
    """How one step function is run, retried and recorded."""

    function: Callable[..., Any]
    is_async: bool
    decode: Callable[[Any], Any]
    """From plain JSON to the annotated result."""
    tx_kind: type[StepTx] | type[Transaction] | None = None
    """The annotation of the parameter that gets the step's transaction."""
    tx_parameter: str = ""
    tx_index: int = 0
    retry: Retry = DEFAULT_RETRY
    timeout_ms: int | None = 600_000
    raises: tuple[type[BaseException], ...] = ()
    returns: Any = Any
    takes: Arguments = _ANY_ARGUMENTS

    def check_types(self) -> None:
        """Raise ``DefinitionError`` if the annotation of the result cannot be resolved."""
        check_annotation(self.returns)

    def check_arguments(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise ``TypeError`` for a call that the function would refuse: retries would not help."""
        try:
            self.takes.check(args, kwargs)
        except TypeError as error:
            raise TypeError(f"step {name!r}: {error}") from None

    def with_options(
        self,
        retry: Retry | None,
        timeout: Duration | None,
        raises: tuple[type[BaseException], ...] | None,
    ) -> StepSpec:
        if retry is None and timeout is None and raises is None:
            return self
        return replace(
            self,
            retry=self.retry if retry is None else check_retry(retry),
            timeout_ms=self.timeout_ms if timeout is None else to_ms(timeout, "timeout"),
            raises=self.raises if raises is None else check_raises(raises),
        )

    def record(self, key: str, limit: int, value: Any) -> tuple[bytes, Any]:
        """The bytes to store for a result, and the value as every replay will see it."""
        what = f"result of step {key!r}"
        data = codec.encode(value, what=what, limit=limit)
        return data, codec.recorded(what, value, data, self.decode)

    def arguments(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], tx: StepTx | Transaction
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The arguments with the transaction put where the function wants it."""
        if self.tx_kind is None or self.tx_parameter in kwargs:
            return args, kwargs
        if len(args) >= self.tx_index:
            return (*args[: self.tx_index], tx, *args[self.tx_index :]), kwargs
        return args, {**kwargs, self.tx_parameter: tx}


def check_retry(retry: Any) -> Retry:
    if not isinstance(retry, Retry):
        raise InvalidOptionError(f"retry must be a Retry(...), not {retry!r}")
    return retry


def check_raises(raises: Any) -> tuple[type[BaseException], ...]:
    classes = tuple(raises) if isinstance(raises, (tuple, list)) else (raises,)
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, Exception)):
            raise InvalidOptionError(f"raises must name exception classes, not {cls!r}")
    return classes


def inspect_step(function: Callable[..., Any], local_names: Mapping[str, Any] | None = None) -> StepSpec:
    """Read a function's signature. Expensive, so done once per function (see ``spec_of``)."""
    if not callable(function):
        raise InvalidOptionError(f"a step needs a function, not {function!r}")
    check_no_generator(f"step {function!r}", function)
    hints = type_hints(function, local_names)
    returns = hints.get("return", Any)
    spec = StepSpec(function, is_async(function), codec.decoder(returns), returns=returns)
    wanted = [name for name, hint in hints.items() if name != "return" and _is_tx(hint)]
    spec = _with_tx(spec, wanted, hints) if wanted else spec
    return replace(spec, takes=Arguments.of(function, without=spec.tx_parameter))


def _is_tx(hint: Any) -> bool:
    """True for a parameter that gets the transaction. The name alone counts, so that it is never silently left out."""
    if isinstance(hint, Unresolved) and repr(hint).rpartition(".")[2] in (StepTx.__name__, Transaction.__name__):
        hint = hint.resolve()
    return hint in (StepTx, Transaction)


def _with_tx(spec: StepSpec, wanted: list[str], hints: Mapping[str, Any]) -> StepSpec:
    kind = hints[wanted[0]]
    if len(wanted) > 1:
        raise InvalidOptionError(f"a step has one transaction; {spec.function!r} asks for {', '.join(wanted)}")
    if kind is Transaction and not spec.is_async:
        raise InvalidOptionError(f"{spec.function!r} takes a Transaction, so it must be `async def`; or use StepTx")
    parameters = list(inspect.signature(spec.function).parameters.values())
    index = next(i for i, p in enumerate(parameters) if p.name == wanted[0])
    positional = parameters[index].kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    return replace(spec, tx_kind=kind, tx_parameter=wanted[0], tx_index=index if positional else sys.maxsize)


_specs: dict[Any, StepSpec] = {}
_MOST_SPECS = 10_000


def spec_of(function: Any) -> StepSpec:
    """The spec of anything callable. Functions made by the same line share one, if their annotations mean the same."""
    if isinstance(function, Step):
        return function.spec
    shape = _shape(function)
    if shape is None:
        return _checked_spec(function)
    spec = _specs.get(shape)
    if spec is None:
        if len(_specs) >= _MOST_SPECS:
            _specs.clear()
        spec = _specs[shape] = _checked_spec(function)
    return spec if spec.function is function else replace(spec, function=function)


def _checked_spec(function: Any) -> StepSpec:
    """The spec of a function that is called now, so that all it names has to be defined."""
    spec = inspect_step(function)
    spec.check_types()
    return spec


def _shape(function: Any) -> tuple[Any, ...] | None:
    """What a spec is read from: the code, the annotations, and the classes closed over that one may name."""
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    classes = tuple(value for value in closure_of(function).values() if isinstance(value, type))
    bound = getattr(function, "__self__", None) is not None
    shape = (code, tuple(function.__annotations__.values()), classes, bound)
    try:
        hash(shape)
    except TypeError:
        return None
    return shape


@dataclass(eq=False)
class Step(Generic[P, R]):
    """A registered step function. Awaited in a run it is durable; outside one it simply runs."""

    name: str
    spec: StepSpec
    fn: Callable[P, Any] = field(repr=False)

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.fn)

    # Not Coroutine[Any, Any, R]: with it, mypy takes asyncio.gather of two steps with different results for Any.
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[None, None, R]:
        loop = running_loop()
        if loop is None:
            return self._run_plainly(*args, **kwargs)
        return loop.host.call(self.name, self.spec, args, kwargs)  # type: ignore[attr-defined, no-any-return]

    async def _run_plainly(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.spec.is_async:
            return await self.fn(*args, **kwargs)  # type: ignore[no-any-return]
        return await asyncio.to_thread(self.fn, *args, **kwargs)

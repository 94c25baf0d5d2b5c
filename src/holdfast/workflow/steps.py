"""Step functions: their signature and options, and the registered ``Step`` whose call is durable in workflow code."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from holdfast.core import codec
from holdfast.core.durations import Duration, to_ms
from holdfast.core.functions import Arguments, Unresolved, check_no_generator, closure_variables, is_async, type_hints
from holdfast.core.retry import Retry, check_retry
from holdfast.core.typed import check_annotation
from holdfast.errors import InvalidOptionError
from holdfast.kernel.attempt import StepTx, Transaction
from holdfast.kernel.flow import Limit
from holdfast.workflow.loop import running_loop

if TYPE_CHECKING:
    from holdfast.store.protocol import LimitKey

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

DEFAULT_RETRY = Retry()
DEFAULT_TIMEOUT = "10 minutes"
_ANY_ARGUMENTS = Arguments(None)


@dataclass(slots=True, eq=False)
class StepSpec:
    """Rules for the calls, retries and records of a step function."""

    function: Callable[..., Any]
    is_async: bool
    decode: Callable[[Any], Any]
    """Decodes plain JSON to the annotated result type."""
    tx_kind: type[StepTx] | type[Transaction] | None = None
    """The annotation of the parameter that gets the step's transaction."""
    tx_parameter: str = ""
    tx_index: int = 0
    retry: Retry = DEFAULT_RETRY
    timeout_ms: int | None = 600_000
    raises: tuple[type[BaseException], ...] = ()
    returns: Any = Any
    signature: Arguments = _ANY_ARGUMENTS
    limits: tuple[Limit, ...] = ()

    def limited_by(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[LimitKey]:
        """The limits of a call with their keys."""
        named = self.named_arguments(args, kwargs) if any(limit.key is not None for limit in self.limits) else {}
        return [limit.of_arguments(args, kwargs, named) for limit in self.limits]

    def check_types(self) -> None:
        """Raise ``DefinitionError`` if the annotation of the result cannot be resolved."""
        check_annotation(self.returns)

    def check_arguments(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise ``TypeError`` if the arguments do not match the signature: retries would not help."""
        signature = self.signature
        if not kwargs and signature.min_positional <= len(args) <= signature.max_positional:
            return
        try:
            signature.check(args, kwargs)
        except TypeError as error:
            raise TypeError(f"step {name!r}: {error}") from None

    def named_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments of a call by the names of the parameters."""
        return self.signature.named(args, kwargs)

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
        """The bytes to store for a result, and the value as every replay decodes it."""
        return codec.record(value, self.decode, limit, "step", key)

    def arguments(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], tx: StepTx | Transaction
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The arguments with the transaction in the place of its parameter."""
        if self.tx_kind is None or self.tx_parameter in kwargs:
            return args, kwargs
        if len(args) >= self.tx_index:
            return (*args[: self.tx_index], tx, *args[self.tx_index :]), kwargs
        return args, {**kwargs, self.tx_parameter: tx}


def check_raises(raises: Any) -> tuple[type[BaseException], ...]:
    classes = tuple(raises) if isinstance(raises, (tuple, list)) else (raises,)
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, Exception)):
            raise InvalidOptionError(f"raises must name exception classes, not {cls!r}")
    return classes


def inspect_step(function: Callable[..., Any], local_names: Mapping[str, Any] | None = None) -> StepSpec:
    """Make the spec of a function from its signature. Expensive, so ``spec_of`` caches specs."""
    if not callable(function):
        raise InvalidOptionError(f"a step needs a function, not {function!r}")
    check_no_generator(f"step {function!r}", function)
    hints = type_hints(function, local_names)
    returns = hints.get("return", Any)
    spec = StepSpec(function, is_async(function), codec.decoder(returns), returns=returns)
    tx_parameters = [name for name, hint in hints.items() if name != "return" and _is_tx(hint)]
    spec = _with_tx(spec, tx_parameters, hints) if tx_parameters else spec
    return replace(spec, signature=Arguments.of(function, without=spec.tx_parameter))


def _is_tx(hint: Any) -> bool:
    """True for the annotation of a parameter that gets the transaction.

    An unresolved annotation is recognised by its name, so that such a parameter is never left out silently.
    """
    if isinstance(hint, Unresolved) and repr(hint).rpartition(".")[2] in (StepTx.__name__, Transaction.__name__):
        hint = hint.resolve()
    return hint in (StepTx, Transaction)


def _with_tx(spec: StepSpec, tx_parameters: list[str], hints: Mapping[str, Any]) -> StepSpec:
    kind = hints[tx_parameters[0]]
    if len(tx_parameters) > 1:
        raise InvalidOptionError(f"a step has one transaction; {spec.function!r} has {', '.join(tx_parameters)}")
    if kind is Transaction and not spec.is_async:
        raise InvalidOptionError(f"{spec.function!r} takes a Transaction, so it must be `async def`; or use StepTx")
    parameters = list(inspect.signature(spec.function).parameters.values())
    index = next(i for i, p in enumerate(parameters) if p.name == tx_parameters[0])
    positional = parameters[index].kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    return replace(spec, tx_kind=kind, tx_parameter=tx_parameters[0], tx_index=index if positional else sys.maxsize)


_specs: dict[Any, StepSpec] = {}
_MAX_SPECS = 10_000


def spec_of(function: Any) -> StepSpec:
    """The spec of a callable. Functions with the same code and equal annotations share one spec."""
    if isinstance(function, Step):
        return function.spec
    key = _spec_key(function)
    if key is None:
        return _checked_spec(function)
    spec = _specs.get(key)
    if spec is None:
        if len(_specs) >= _MAX_SPECS:
            _specs.clear()
        spec = _specs[key] = _without_captured(_checked_spec(function))
    return spec if spec.function is function else replace(spec, function=function)


def _without_captured(spec: StepSpec) -> StepSpec:
    """The spec without its function if that is a method or a closure.

    The cache would keep the object or the variables in memory. Each access to a method and each execution of a nested
    ``def`` make another function anyway.
    """
    function = spec.function
    captures = getattr(function, "__self__", None) is not None or getattr(function, "__closure__", None)
    return replace(spec, function=_not_cached) if captures else spec


def _not_cached() -> None:
    """The function of a cached spec whose own function is not kept."""


def _checked_spec(function: Any) -> StepSpec:
    """The spec of a function that is about to be called: all names in its annotations have to be defined."""
    spec = inspect_step(function)
    spec.check_types()
    return spec


def _spec_key(function: Any) -> tuple[Any, ...] | None:
    """The cache key of a spec: the code, the annotations, and classes in the closure that annotations may name."""
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    classes = tuple(value for value in closure_variables(function).values() if isinstance(value, type))
    bound = getattr(function, "__self__", None) is not None
    key = (code, tuple(function.__annotations__.values()), classes, bound)
    try:
        hash(key)
    except TypeError:
        return None
    return key


@dataclass(eq=False)
class Step(Generic[P, R]):
    """A registered step function. A call in workflow code is durable; elsewhere it only calls the function."""

    name: str
    spec: StepSpec
    fn: Callable[P, Any] = field(repr=False)

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.fn)

    # Not Coroutine[Any, Any, R]: with that, mypy infers Any for asyncio.gather of steps with different result types.
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[None, None, R]:
        loop = running_loop()
        if loop is None:
            return self._run_directly(*args, **kwargs)
        return loop.host.steps.call(self.name, self.spec, args, kwargs)  # type: ignore[attr-defined, no-any-return]

    async def _run_directly(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.spec.is_async:
            result: R = await self.fn(*args, **kwargs)
            return result
        return await asyncio.to_thread(self.fn, *args, **kwargs)

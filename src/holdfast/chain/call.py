"""The call of a step's handler, in the form that the runner executes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.chain.answers import NO_VALUE, DoneAnswer, HandlerAnswer, encode_answer
from holdfast.chain.values import ChainTask
from holdfast.core.limits import Limits
from holdfast.kernel.attempt import StepTx, Transaction
from holdfast.kernel.flow import Limit
from holdfast.store.protocol import Fact, LimitKey


@dataclass(slots=True, eq=False)
class Handler:
    """A step's function."""

    function: Callable[[ChainTask], Any]
    is_async: bool
    limits: tuple[Limit, ...] = ()


@dataclass(slots=True, eq=False)
class ChainCall:
    """One attempt of a step."""

    key: str
    attempt: int
    timeout_ms: int | None
    values: Mapping[str, Any]
    args: tuple[Any, ...]
    handler: Handler
    limits: Limits
    last: bool
    """True for the last step of the chain."""
    max_attempts: int
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    progress: bytes | None = None

    @property
    def function(self) -> Callable[..., Any]:
        return self.handler.function

    @property
    def is_async(self) -> bool:
        return self.handler.is_async

    @property
    def limited_by(self) -> Sequence[LimitKey]:
        task: ChainTask = self.args[0]
        return [limit.of_params(task.params, None) for limit in self.handler.limits]

    @property
    def wants_tx(self) -> None:
        return None

    def arguments(self, tx: StepTx | Transaction) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        return self.args, self.kwargs

    def record(self, value: Any) -> tuple[bytes, HandlerAnswer]:
        answer = encode_answer(self.key, value, self.limits, last=self.last)
        return answer.value if isinstance(answer, DoneAnswer) else NO_VALUE, answer

    def start_fact(self, attempt: int, at: int) -> Fact | None:
        """Return None. The claim shows that the step runs; a START fact would be read as a wait."""
        return None

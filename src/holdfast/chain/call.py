"""A call of a step's handler, as the runner wants it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.chain.decisions import NO_VALUE, Decision, Done, decide
from holdfast.chain.values import ChainTask
from holdfast.core.limits import Limits
from holdfast.kernel.attempt import StepTx, Transaction
from holdfast.store.protocol import Fact


@dataclass(slots=True, eq=False)
class Handler:
    """A step's function."""

    function: Callable[[ChainTask], Any]
    is_async: bool


@dataclass(slots=True, eq=False)
class ChainCall:
    """One attempt of a step that is due."""

    key: str
    attempt: int
    timeout_ms: int | None
    values: Mapping[str, Any]
    args: tuple[Any, ...]
    handler: Handler
    limits: Limits
    last: bool
    """The run ends with this step."""
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
    def wants_tx(self) -> None:
        return None

    def arguments(self, tx: StepTx | Transaction) -> tuple[tuple[Any, ...], Mapping[str, Any]]:  # noqa: ARG002  (it has none)
        return self.args, self.kwargs

    def record(self, value: Any) -> tuple[bytes, Decision]:
        decision = decide(self.key, value, self.limits, last=self.last)
        return decision.value if isinstance(decision, Done) else NO_VALUE, decision

    def note(self, attempt: int, at: int) -> Fact | None:  # noqa: ARG002
        """That it runs is known by its claim: a START would be taken for a wait."""
        return None

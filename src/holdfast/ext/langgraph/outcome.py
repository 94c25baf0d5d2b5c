"""The outcome of a node as JSON: the result of its step."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass, field
from typing import Any

from holdfast.extras import extra

with extra("langgraph", "holdfast.ext.langgraph"):
    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.types import Command


@dataclass(frozen=True, slots=True)
class Interruption:
    """An interrupt of a node, without the id, which is different in each replay.

    ``answered`` is the number of interrupts of the same node that were answered before.
    """

    value: Any
    answered: int
    response_schema: Any = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The writes of a node to channels; and its interrupts, or a command to the graph around it."""

    writes: list[tuple[str, Any]]
    interrupts: list[Interruption] = field(default_factory=list)
    command: Command[Any] | None = None


@dataclass(frozen=True, slots=True)
class OutcomeCodec:
    """Encodes plain JSON values as they are, and other values, such as messages, with the serializer of LangGraph."""

    serde: SerializerProtocol

    def encode(self, outcome: Outcome) -> dict[str, Any]:
        encoded: dict[str, Any] = {"writes": [[channel, self._encode(value)] for channel, value in outcome.writes]}
        if outcome.interrupts:
            encoded["interrupts"] = [
                [self._encode(each.value), each.answered, self._encode(each.response_schema)]
                for each in outcome.interrupts
            ]
        if outcome.command is not None:
            encoded["command"] = self._encode(outcome.command)
        return encoded

    def decode(self, encoded: dict[str, Any]) -> Outcome:
        return Outcome(
            [(channel, self._decode(value)) for channel, value in encoded["writes"]],
            [
                Interruption(self._decode(value), answered, self._decode(schema))
                for value, answered, schema in encoded.get("interrupts", ())
            ],
            self._decode(encoded["command"]) if "command" in encoded else None,
        )

    def _encode(self, value: Any) -> dict[str, Any]:
        if _is_json(value):
            return {"json": value}
        kind, data = self.serde.dumps_typed(value)
        return {"type": kind, "base64": base64.b64encode(data).decode("ascii")}

    def _decode(self, encoded: dict[str, Any]) -> Any:
        if "json" in encoded:
            return encoded["json"]
        return self.serde.loads_typed((encoded["type"], base64.b64decode(encoded["base64"])))


def _is_json(value: Any) -> bool:
    """True if a value comes back from JSON as it is, with the same types."""
    kind = type(value)
    if kind is list:
        return all(map(_is_json, value))
    if kind is dict:
        return all(type(key) is str for key in value) and all(map(_is_json, value.values()))
    return value is None or kind in (str, bool, int) or (kind is float and math.isfinite(value))

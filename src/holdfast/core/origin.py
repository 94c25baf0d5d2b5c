"""The origin of a run that continues from the recorded history of another run: a retry, a fork, a resolved step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.core import codec


@dataclass(frozen=True, slots=True)
class Origin:
    """The run whose history was copied, and the request that copied it."""

    action: str
    """``retry``, ``fork`` or ``resolve``."""
    pid: str
    number: int
    """The number of that run."""
    at: int
    actor: str | None
    reason: str | None
    replayed_number: int
    """The number of the run that recorded the history first: random values of the code depend on it."""
    key_number: int | None
    """The run number in idempotency keys of steps; None: the run's own number."""

    def encode(self) -> bytes:
        content = {name: getattr(self, name) for name in self.__slots__}
        return codec.encode({name: value for name, value in content.items() if value is not None}, what="origin")

    @classmethod
    def decode(cls, data: bytes) -> Origin:
        content: dict[str, Any] = dict.fromkeys(cls.__slots__) | codec.plain(data)
        return cls(**content)

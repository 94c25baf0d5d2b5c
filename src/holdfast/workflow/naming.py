"""Names of steps across releases: registered, renamed and retired steps, and recorded results without a step.

A recorded result is found by the key of its step. A step that gets another name is therefore a new step, and runs
again. ``StepNames`` holds what the app declares about its step names; ``Leftovers`` finds the recorded results of a run
that belong to no step of the app any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.core.facts import Fact
from holdfast.core.model import StepType
from holdfast.errors import DefinitionError


class StepNames:
    """The step names of one app."""

    def __init__(self) -> None:
        self._registered: set[str] = set()
        self._retired: set[str] = set()
        self._renamed: dict[str, str] = {}
        """New name by old name."""

    def register(self, name: str, renamed_from: Sequence[str] = ()) -> None:
        for old in renamed_from:
            self._check_rename(old, name)
        if name in self._renamed:
            raise DefinitionError(
                f"step {name!r} is registered, and step {self._renamed[name]!r} has renamed_from={name!r}; "
                "a recorded result can belong to one of them only"
            )
        self._registered.add(name)
        self._renamed.update(dict.fromkeys(renamed_from, name))

    def _check_rename(self, old: str, name: str) -> None:
        if old == name or old in self._registered:
            raise DefinitionError(
                f"step {name!r} has renamed_from={old!r}, and a step of that name is registered; "
                "name a step that the app no longer has"
            )
        if self._renamed.get(old, name) != name:
            raise DefinitionError(f"steps {self._renamed[old]!r} and {name!r} both have renamed_from={old!r}")

    def retire(self, names: Iterable[str]) -> None:
        self._retired.update(names)

    def declares(self, name: str) -> bool:
        """True if a step of this name was renamed or retired on purpose."""
        return name in self._renamed or name in self._retired

    def __contains__(self, name: str) -> bool:
        """True if a step of this name is registered, renamed or retired."""
        return name in self._registered or name in self._renamed or name in self._retired

    def aliases(self, recorded: Mapping[str, str]) -> dict[str, str]:
        """Recorded keys, by new key, of renamed steps that a run has recorded under their old names.

        ``recorded`` holds kinds by key. A run keeps the recorded key of a step, so that the count of its attempts
        continues and its idempotency key stays the same.
        """
        if not self._renamed:
            return {}
        aliases: dict[str, str] = {}
        for key, kind in recorded.items():
            old = key if key in self._renamed else key.rpartition("#")[0]
            if kind == StepType.DO and old in self._renamed:
                new = self._renamed[old] + key[len(old) :]
                if new not in recorded:
                    aliases.setdefault(new, key)
        return aliases


class Leftovers:
    """Recorded results of one run that its code has not requested and that belong to no step of the app."""

    __slots__ = ("_names", "by_key")

    def __init__(self, names: StepNames) -> None:
        self._names = names
        self.by_key: dict[str, str] = {}
        """The names of the steps by the keys of their results."""

    def add(self, result: Fact) -> None:
        """Add a result that was delivered before the code requested it. Names of ``ctx.do`` are ignored: no app
        registers them."""
        if result.kind == StepType.DO and result.name is not None and result.name not in self._names:
            self.by_key[result.key] = result.name

    def discard(self, key: str) -> None:
        self.by_key.pop(key, None)

    def names(self) -> list[str]:
        return list(dict.fromkeys(self.by_key.values()))


def warning(new: str, old: str) -> str:
    """The log line about a step that is called without a record while the result of an unknown step is unused."""
    return (
        f"step {new!r} has no record in this run and is called now; the recorded result of step {old!r} is not used, "
        f"and no step {old!r} is registered. {_ADVICE.format(new=new, old=old)}"
    )


def divergence(new: str, old: str) -> str:
    return (
        f"the code requests step {new!r}, which has no record, and has not requested the recorded result of step "
        f"{old!r}, which is not registered any more. {_ADVICE.format(new=new, old=old)}"
    )


_ADVICE = (
    "If {old!r} was renamed, declare it with @app.step(renamed_from={old!r}); if it was removed on purpose, with "
    "app.retired_steps({old!r})"
)

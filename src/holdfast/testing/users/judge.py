"""Compares a run under faults with the run without, and says what kind of mistake a difference is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from holdfast.core.show import shown
from holdfast.testing.users.calls import Called, Step
from holdfast.testing.users.report import Finding, FindingKind, SimulatedRun
from holdfast.testing.users.scene import Seen

_WIDTH = 300


class Trouble(NamedTuple):
    """A difference. ``tag``: of what sort, so that a smaller run can be seen to have the same."""

    tag: str
    message: str


class Judge:
    """``calm``: what comes of it without faults."""

    def __init__(
        self,
        calm: Seen,
        allow: Callable[[SimulatedRun], bool] | Collection[Any],
        check: Callable[[SimulatedRun], object] | None,
    ) -> None:
        self.calm = calm
        self._allow = allow
        self._check = check

    # --- is anything wrong?

    def of_calm(self) -> Trouble | None:
        """Without faults."""
        found, run = self._of_itself(self.calm), self.calm.run
        if found is None and run.status != "complete" and not self._allowed(run):
            return Trouble("failure", f"The run {run.ending}, without any fault.")
        return found

    def of_calm_again(self, again: Seen) -> Trouble | None:
        """Without faults, for the second time."""
        if self.calm.end == again.end and self.calm.view == again.view:
            return None
        return Trouble("unsteady", "Two runs without faults ended differently.\n" + _difference(self.calm, again))

    def of(self, seen: Seen) -> Trouble | None:
        found = self._of_itself(seen)
        if found is not None:
            return found
        if seen.end != self.calm.end:
            if self._allowed(seen.run):
                return None
            return Trouble("end", "It ended otherwise than without faults.\n" + _difference(self.calm, seen))
        if seen.view != self.calm.view:
            return Trouble("view", "The world outside is not as it is without faults.\n" + _difference(self.calm, seen))
        return None

    def _of_itself(self, seen: Seen) -> Trouble | None:
        """What is wrong whatever happens without faults."""
        if seen.stuck is not None and "NON_DETERMINISTIC" in seen.stuck:
            return Trouble("replay", f"The run is paused for good: {seen.stuck}.")
        if seen.stuck is not None:
            return Trouble("wait", f"Nothing is due any more, nothing is sent any more, and {seen.stuck}.")
        if seen.endless is not None:
            return Trouble("endless", f"It does not come to an end: {seen.endless}.")
        if seen.replay is not None:
            return Trouble("replay", f"{seen.replay}.")
        if self._check is not None:
            try:
                self._check(seen.run)
            except AssertionError as error:
                return Trouble("check", f"check: {error or 'an assertion failed'}")
        return None

    def _allowed(self, run: SimulatedRun) -> bool:
        if callable(self._allow):
            return bool(self._allow(run))
        return run.status == "complete" and run.result in [*self._allow]

    # --- what is it?

    def is_explained(self, trouble: Trouble, seen: Seen, findings: Sequence[Finding]) -> bool:
        """Whether it is likely to be what was found already."""
        steps = self._repeated(seen)
        kinds = [self._kind(trouble, seen, []), *([FindingKind.STEP] if steps else [])]
        same = [finding for finding in findings if finding.kind in kinds]
        return bool(same) and all(any(repr(key) in (one.step or "") for one in same) for _, key in steps)

    def suspects(self, seen: Seen) -> list[tuple[Step, int | None]]:
        """Steps that were called more often than without faults, with how far a call got that was not the last.

        None: it cannot be tried out.
        """
        found = [
            (step, None if one.in_transaction else 0 if one.outcome is not None else one.waits)
            for step in self._repeated(seen)
            for one in _calls(seen, step)[:-1]
        ]
        return list(dict.fromkeys(found))

    def finding(self, trouble: Trouble, seen: Seen, guilty: Sequence[Step] = ()) -> Finding:
        """``seen`` has no fault more than it needs. ``guilty``: steps that do it alone, when they are called twice."""
        kind = self._kind(trouble, seen, guilty)
        keys = list(dict.fromkeys(key for _, key in guilty)) if kind is FindingKind.STEP else []
        told = [f"{key!r} was called more than once: {_outcomes(seen, key)}" for key in keys]
        named = ", ".join(repr(key) for key in keys) or None
        return Finding(kind, seen.run.seed, named, "\n".join([trouble.message, *told]), seen.story, seen.faults)

    def unsteady(self, seen: Seen) -> Finding:
        message = (
            f"The same seed, with the same faults, did something else the second time; first it {seen.run.ending}."
        )
        return Finding(FindingKind.UNSTEADY, seen.run.seed, None, message, seen.story, seen.faults)

    def _kind(self, trouble: Trouble, seen: Seen, guilty: Sequence[Step]) -> FindingKind:
        match trouble.tag:
            case "replay":
                return FindingKind.REPLAY
            case "endless":
                return FindingKind.ENDLESS
            case "failure":
                return FindingKind.FAILURE
            case "unsteady":
                return FindingKind.UNSTEADY
            case _ if guilty:
                return FindingKind.STEP
            case "wait":
                return FindingKind.WAIT
            case "check":
                return FindingKind.CHECK
            case _ if seen.run.status != self.calm.run.status:
                return FindingKind.FAILURE
            case _:
                return FindingKind.TIMING

    def _repeated(self, seen: Seen) -> list[Step]:
        before = Counter(one.step for one in self.calm.calls)
        now = Counter(one.step for one in seen.calls)
        return [step for step, times in now.items() if times > max(1, before[step])]


def _calls(seen: Seen, step: Step) -> list[Called]:
    return [one for one in seen.calls if one.step == step]


def _outcomes(seen: Seen, key: str) -> str:
    return ", then ".join(one.outcome or "cut off" for one in seen.calls if one.step[1] == key)


def _difference(calm: Seen, seen: Seen) -> str:
    """Of two runs, side by side."""
    if calm.end != seen.end:
        return f"  without faults: {calm.run.ending}\n  now:            {seen.run.ending}"
    before, after = _changed(calm.view, seen.view)
    return f"  without faults: {before}\n  now:            {after}"


def _changed(before: Any, after: Any) -> tuple[str, str]:
    """The part of a view that differs."""
    one, other = next(pair for pair in zip(before, after, strict=True) if pair[0] != pair[1])
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [key for key in {**one, **other} if one.get(key, ...) != other.get(key, ...)]
        one, other = ({key: part[key] for key in keys if key in part} for part in (one, other))
    return shown(one, _WIDTH), shown(other, _WIDTH)

"""Tracebacks as text, trimmed to what a user needs: frames of user code, with library and engine frames folded.

The text is made when an attempt or a run fails and is stored with the error, so nothing here keeps a frame alive.
"""

from __future__ import annotations

import sys
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException
from types import CodeType, FrameType
from typing import Any

from holdfast.errors import ChildError, StepError

MOST_BYTES = 16 * 1024
_LONGEST_CHAIN = 8
_FOLDED = "<folded>"
_ENGINE = "holdfast"
_PACKAGE = Path(__file__).parents[1]


def trimmed(error: BaseException) -> str | None:
    """The traceback of an exception with its chain, or None if it has no frames. Never raises."""
    try:
        shown = TracebackException.from_exception(error, lookup_lines=False, compact=True)
        if not any(one.stack for one, _ in _tree(shown, error)) and recorded(error) is None:
            return None
        own = _first_library(one.stack for one, _ in _tree(shown, error))
        for one, exception in [*_tree(shown, error)]:
            one.stack = _folded(one.stack, own)
            _add_record(one, exception)
        return bounded("".join(shown.format()).rstrip("\n"))
    except Exception:  # an exception class of the user's that breaks its own attributes
        return None


def stack(frames: Iterable[FrameType]) -> str | None:
    """A stack of frames, outermost first, as text; None if there are none."""
    summary = StackSummary.extract(((frame, frame.f_lineno) for frame in frames), lookup_lines=False)
    return bounded("".join(_folded(summary, _first_library([summary])).format()).rstrip("\n")) or None


def coroutine_frames(awaited: Any) -> Iterator[FrameType]:
    """The frames of a suspended coroutine and of what it awaits, outermost first."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            return
        yield frame
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)


def thread_frames(thread: int | None, entry: CodeType) -> list[FrameType]:
    """The frames that a thread is in below the innermost call of ``entry``, outermost first."""
    frames: list[FrameType] = []
    frame = None if thread is None else sys._current_frames().get(thread)  # noqa: SLF001  (documented)
    while frame is not None:
        if frame.f_code is entry:
            return frames[::-1]
        frames.append(frame)
        frame = frame.f_back
    return []


def recorded(error: BaseException | None) -> StepError | None:
    """The failed step or child that an exception of workflow code stands for, if its traceback is known."""
    for one in (error, None if error is None else error.__cause__):
        if isinstance(one, StepError) and one.traceback is not None:
            return one
    return None


def bounded(text: str) -> str:
    """The text without its middle, if it has more than ``MOST_BYTES`` bytes as UTF-8."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= MOST_BYTES:
        return text
    half = MOST_BYTES // 2 - 50
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return f"{head}\n  ... {len(data) - 2 * half} bytes are left out ...\n{tail}"


# --- the chain


def _tree(shown: TracebackException, error: BaseException) -> Iterator[tuple[TracebackException, BaseException]]:
    """Each exception of the chain and of the groups in it, with its printable form; a long chain is cut."""
    queue: list[tuple[TracebackException | None, BaseException | None, int]] = [(shown, error, 0)]
    while queue:
        one, exception, depth = queue.pop()
        if one is None or exception is None:
            continue
        if depth == _LONGEST_CHAIN:
            one.__cause__ = one.__context__ = None
        yield one, exception
        queue.append((one.__cause__, exception.__cause__, depth + 1))
        queue.append((one.__context__, exception.__context__, depth + 1))
        if isinstance(exception, BaseExceptionGroup):
            inner: Sequence[BaseException] = exception.exceptions
            queue.extend((a, b, depth + 1) for a, b in zip(one.exceptions or (), inner, strict=False))


def _add_record(shown: TracebackException, error: BaseException) -> None:
    """Show the stored traceback of a failed step below its error, in place of the StepError that only repeats it."""
    step = recorded(error)
    if step is None or step.traceback is None:
        return
    origin = f"run {step.pid}" if isinstance(step, ChildError) else f"step {step.step!r}, attempt {step.attempts}"
    note = f"The error came from {origin}:\n{textwrap.indent(step.traceback, '  ')}"
    notes: list[str] = getattr(shown, "__notes__", None) or []
    shown.__notes__ = [*notes, note]
    shown.__cause__, shown.__suppress_context__ = None, True


# --- frames


class _Trimmed(StackSummary):
    """A stack in which one entry may stand for several folded frames."""

    def format_frame_summary(self, frame_summary: FrameSummary, **options: Any) -> str:
        if frame_summary.filename == _FOLDED:
            return f"  {frame_summary.name}\n"
        return super().format_frame_summary(frame_summary, **options)


def _folded(frames: Sequence[FrameSummary], own: str | None) -> StackSummary:
    """User frames as they are; runs of other frames as one line each. The engine's outermost frames are dropped."""
    groups = [(key, list(group)) for key, group in groupby(frames, lambda frame: _is_users(frame, own))]
    if groups and not groups[0][0] and len(groups) > 1 and _is_engine(groups[0][1]):
        del groups[0]
    return _Trimmed(frame for users, group in groups for frame in (group if users else [_fold(group)]))


def _fold(frames: Sequence[FrameSummary]) -> FrameSummary:
    names = ", ".join(dict.fromkeys(library_of(frame.filename) or "" for frame in frames))
    last = frames[-1]
    count = "1 frame" if len(frames) == 1 else f"{len(frames)} frames"
    place = f"{Path(last.filename).name}, line {last.lineno}, in {last.name}"
    return FrameSummary(_FOLDED, None, f"... {count} of {names} ({place})", lookup_line=False, line="")


def _is_users(frame: FrameSummary, own: str | None) -> bool:
    library = library_of(frame.filename)
    return library is None or library == own


def _is_engine(frames: Iterable[FrameSummary]) -> bool:
    return all(library_of(frame.filename) == _ENGINE for frame in frames)


def _first_library(stacks: Iterable[Sequence[FrameSummary]]) -> str | None:
    """The library whose function the engine called, which is then shown as user code.

    An application that is installed as a package is in ``site-packages`` too. Without any frame outside the engine,
    the function is one of the engine's own.
    """
    libraries = [library_of(frame.filename) for stack in stacks for frame in stack]
    return next((library for library in libraries if library != _ENGINE), _ENGINE)


@lru_cache(maxsize=1024)
def library_of(filename: str) -> str | None:
    """The package of a source file of the engine, the standard library or an installed package; None: user code."""
    if filename.startswith("<frozen "):
        return filename[len("<frozen ") : -1].partition(".")[0]
    path = Path(filename)
    if path.is_relative_to(_PACKAGE):
        return _ENGINE
    for root in _library_paths():
        if path.is_relative_to(root):
            return _top(path.relative_to(root).parts)
    for name in ("site-packages", "dist-packages"):
        if name in path.parts:
            return _top(path.parts[path.parts.index(name) + 1 :])
    return None


@lru_cache(maxsize=1)
def _library_paths() -> list[Path]:
    """The longest first: site-packages is inside the standard library's directory. Not needed by an import."""
    paths = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib", "platstdlib")}
    return sorted(paths, key=lambda path: len(path.parts), reverse=True)


def _top(parts: Sequence[str]) -> str:
    return parts[0].removesuffix(".py") if parts else ""

"""Worker ids, as shown in ``locked_by``, ``owner`` and log lines: ``app@host:pid:suffix``."""

from __future__ import annotations

import re
from pathlib import Path
from types import FrameType

from holdfast.ports import Randomness

_MAX_APP_LENGTH = 40
_MAX_HOST_LENGTH = 60
_SUFFIX_DIGITS = 12
_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]+")


def program_name(frame: FrameType | None) -> str:
    """The name of the frame's module; for a script, the name of its file."""
    names = {} if frame is None else frame.f_globals
    module = str(names.get("__name__", ""))
    if module != "__main__":
        return module
    if names.get("__spec__") is not None:  # python -m
        return str(names["__spec__"].name).removesuffix(".__main__")
    return Path(str(names.get("__file__", "python"))).stem


def worker_id(app: str, host: str, pid: int, random: Randomness) -> str:
    """A readable id. The random suffix alone makes it unique: containers share host names and process ids."""
    suffix = random.uuid4().hex[:_SUFFIX_DIGITS]
    return f"{_clean(app)[-_MAX_APP_LENGTH:]}@{_clean(host)[:_MAX_HOST_LENGTH]}:{pid}:{suffix}"


def _clean(text: str) -> str:
    return _UNUSUAL.sub("_", text) or "_"

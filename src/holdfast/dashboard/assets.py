"""The static files of the dashboard, with content hashes, entity tags and compressed copies.

The URL of a file contains the hash of all files, ``static/<hash>/app.js``, so that a browser may keep it for ever, and
relative imports between modules need no rewriting. ``index.html`` is the only file without a hash: it is revalidated
at each visit.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

DIRECTORY = Path(__file__).parent / "static"
INDEX = "index.html"

_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
_MIN_COMPRESSED = 512
"""Smaller files are not compressed: the response would not get shorter."""
_SHOWN_DIGITS = 16


@dataclass(frozen=True)
class Asset:
    """One file: its content, and the headers that depend on the content."""

    content: bytes = field(repr=False)
    media_type: str

    @cached_property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'

    @cached_property
    def compressed(self) -> bytes | None:
        """The content with gzip; None if that saves nothing."""
        if len(self.content) < _MIN_COMPRESSED:
            return None
        content = gzip.compress(self.content, 9, mtime=0)
        return content if len(content) < len(self.content) else None


class Assets:
    """The files of a directory, read once."""

    def __init__(self, directory: Path = DIRECTORY) -> None:
        files = {
            path.relative_to(directory).as_posix(): Asset(path.read_bytes(), _MEDIA_TYPES[path.suffix])
            for path in sorted(directory.rglob("*"))
            if path.is_file() and path.suffix in _MEDIA_TYPES
        }
        index = files.pop(INDEX, None)
        self._files: Mapping[str, Asset] = files
        self.hash = _hash_of(files)
        self.index = Asset(self._with_hash(index.content if index else b""), _MEDIA_TYPES[".html"])

    def _with_hash(self, page: bytes) -> bytes:
        return page.replace(b"./static/", f"./static/{self.hash}/".encode())

    def manifest(self) -> dict[str, str]:
        """The entity tag of each file by its name."""
        return {name: asset.etag for name, asset in self._files.items()}

    def get(self, hashed_name: str) -> Asset | None:
        """The file ``<hash>/<name>``. A hash of other files, such as those of an earlier release, has no files."""
        given, _, name = hashed_name.partition("/")
        return self._files.get(name) if given == self.hash else None


def _hash_of(files: Mapping[str, Asset]) -> str:
    digest = hashlib.sha256()
    for name, asset in files.items():
        digest.update(f"{name}\0{asset.etag}\n".encode())
    return digest.hexdigest()[:_SHOWN_DIGITS]

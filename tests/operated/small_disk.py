"""A small file system that can be filled, for one part of a server's data."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

_CHUNK = 64 * 1024


class SmallDisk:
    """A tmpfs of ``megabytes``. Mounting one needs root."""

    def __init__(self, folder: Path, megabytes: int, user: str | None) -> None:
        if os.geteuid() != 0:
            pytest.skip("mounting a small file system needs root")
        self.folder = folder
        self._ballast = folder / "ballast"
        folder.mkdir(exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
        if user is not None:
            shutil.chown(folder, user)
        folder.chmod(0o700)

    def fill(self) -> None:
        """Write until there is no space left."""
        with self._ballast.open("ab", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(bytes(_CHUNK))
        with self._ballast.open("ab", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(bytes(512))

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], capture_output=True, check=False)

"""A package of an extra that is not installed is named with the command that installs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BLOCKED = "import sys; sys.modules[{package!r}] = None\n"


def run(package: str, code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in which the package cannot be imported."""
    program = BLOCKED.format(package=package) + code
    return subprocess.run(
        [sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize(
    ("package", "code", "extra"),
    [
        (
            "asyncpg",
            "import asyncio, holdfast\nasyncio.run(holdfast.Holdfast('postgresql://x/y').connect().__aenter__())",
            "postgres",
        ),
        ("fastapi", "import holdfast\nholdfast.Holdfast('sqlite://').asgi()", "server"),
    ],
)
def test_the_library_names_the_extra_of_a_missing_package(package: str, code: str, extra: str, tmp_path: Path) -> None:
    done = run(package, code, tmp_path)

    last = done.stderr.strip().splitlines()[-1]
    assert "MissingExtraError" in last
    assert f"needs the package {package}" in last
    assert f"pip install 'holdfast[{extra}]'" in last


def test_a_command_names_the_extra_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from holdfast import Holdfast\napp = Holdfast('sqlite://')\n")
    command = "sys.argv = ['holdfast', 'serve', 'shop:app']\nfrom holdfast.cli.main import main; main()"

    done = run("uvicorn", command, tmp_path)

    assert done.returncode == 1
    [line] = done.stderr.strip().splitlines()
    assert line.endswith("needs the package uvicorn, which is not installed. Run: pip install 'holdfast[server]'")


def test_sqlite_needs_no_extra(tmp_path: Path) -> None:
    code = (
        "for name in ('fastapi', 'uvicorn', 'uvloop', 'httptools'): sys.modules[name] = None\n"
        "import asyncio\n"
        "from holdfast import Context, Holdfast\n"
        "app = Holdfast('sqlite:///a.db')\n"
        "@app.workflow\n"
        "async def greet(ctx: Context, name: str) -> str:\n    return f'hello {name}'\n"
        "async def main():\n"
        "    async with app:\n        print(await (await app.start(greet, 'ann')).result())\n"
        "asyncio.run(main())\n"
    )

    assert run("asyncpg", code, tmp_path).stdout == "hello ann\n"

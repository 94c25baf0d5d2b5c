"""The pages of the documentation that the MCP server offers as resources. The wheel contains them."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import InvalidOptionError

PAGES = ("concepts", "debugging", "errors", "flow", "repair", "schedules", "streams", "versioning")
"""Names of the pages. ``pyproject.toml`` adds the same pages to the wheel."""


def page(name: str) -> str:
    """The text of a page."""
    if name not in PAGES:
        raise InvalidOptionError(f"there is no page {name!r}; there are: {', '.join(PAGES)}")
    installed = Path(__file__).with_name("docs")
    folder = installed if installed.is_dir() else Path(__file__).parents[3] / "docs"  # a checkout
    return (folder / f"{name}.md").read_text(encoding="utf-8")


def titles() -> dict[str, str]:
    """The title of each page, by the name of the page."""
    return {name: page(name).partition("\n")[0].removeprefix("# ") for name in PAGES}

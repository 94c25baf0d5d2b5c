"""Keeps passwords out of what commands print."""

from __future__ import annotations

import re
from urllib.parse import unquote


def without_password(text: str, url: str) -> str:
    """``text``, which may quote ``url`` or parts of it, with the URL's password replaced."""
    for password in sorted(_passwords(url), key=len, reverse=True):
        text = text.replace(password, "…")
    return text


def _passwords(url: str) -> set[str]:
    """What may be one, also in a URL that is none: whoever mistypes the scheme has typed the password too."""
    rest = url.partition("://")[2] or url
    before_host = {rest.partition("@")[0], rest.rpartition("@")[0]} if "@" in rest else set()
    found = {credentials.partition(":")[2] for credentials in before_host}
    found.update(re.findall(r"password=([^&\s]+)", rest))
    return {form for password in found for form in (password, unquote(password)) if form}

"""Removes passwords from the output of commands."""

from __future__ import annotations

import re
from urllib.parse import unquote


def without_password(text: str, url: str) -> str:
    """Replace the password of ``url`` in ``text``, which may quote the URL or parts of it."""
    for password in sorted(_passwords(url), key=len, reverse=True):
        text = text.replace(password, "…")
    return text


def _passwords(url: str) -> set[str]:
    """Possible passwords, also in an invalid URL: a URL with a mistyped scheme still contains the password."""
    without_scheme = url.partition("://")[2] or url
    credentials = (
        {without_scheme.partition("@")[0], without_scheme.rpartition("@")[0]} if "@" in without_scheme else set()
    )
    passwords = {text.partition(":")[2] for text in credentials}
    passwords.update(re.findall(r"password=([^&\s]+)", without_scheme))
    return {form for password in passwords for form in (password, unquote(password)) if form}

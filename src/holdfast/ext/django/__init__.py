"""Holdfast as an app of Django: ``INSTALLED_APPS = [..., "holdfast.ext.django"]``.

``app`` is the ``Holdfast`` app of the project, made from the settings when it is first used. Modules named
``workflows`` of installed apps are imported when Django starts, and register their workflows on it. ``start`` and
``send_event`` write in the transaction of Django's own connection; ``client`` has all other calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.extras import extra

with extra("django", "The app for Django"):
    import django

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.ext.django.project import client, send_event, start

    app: Holdfast

__all__ = ["app", "client", "send_event", "start"]


def __getattr__(name: str) -> Any:
    # Loaded on use: Django imports this package before its settings and models are ready.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from django.apps import apps

    if not apps.loading and not apps.ready:  # `holdfast worker holdfast.ext.django:app`, without manage.py
        django.setup()
    from holdfast.ext.django import project

    return project.project_app() if name == "app" else getattr(project, name)

"""The app's configuration. It only registers: it opens no database and starts no thread."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.backends.signals import connection_created
from django.utils.module_loading import autodiscover_modules


class HoldfastConfig(AppConfig):
    name = "holdfast.ext.django"
    label = "holdfast"
    verbose_name = "Holdfast"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from holdfast.ext.django import project, task_workflow

        task_workflow.register(project.project_app())
        connection_created.connect(project.open_beside, dispatch_uid="holdfast")
        autodiscover_modules("workflows")

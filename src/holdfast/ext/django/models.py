"""A model without a table, so that the admin pages have a place and permissions."""

from __future__ import annotations

from django.db import models


class Run(models.Model):
    """An instance. Its rows are read through Holdfast's client, never by this model."""

    id = models.CharField(primary_key=True, max_length=512)

    class Meta:
        app_label = "holdfast"
        managed = False
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        return str(self.id)

"""The model of the test project."""

from django.db import models


class Order(models.Model):
    total = models.IntegerField()
    paid = models.BooleanField(default=False)

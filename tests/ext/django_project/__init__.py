"""A Django project for the tests of ``holdfast.ext.django``."""

"""The ``holdfast`` command."""

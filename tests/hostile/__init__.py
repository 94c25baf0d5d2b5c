"""The ordinary suite under hostile settings: ``pytest --hostile``."""

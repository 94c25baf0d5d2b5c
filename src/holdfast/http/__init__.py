"""The HTTP API. It accesses runs only through the client; ``holdfast.app`` assembles it.

Only ``auth`` is cheap to import. The other modules import FastAPI and are imported when ``app.asgi()`` is called.
"""

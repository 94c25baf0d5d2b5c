"""The HTTP API. It reaches runs only through the client; ``holdfast.app`` puts it together.

Only ``auth`` is light: everything else imports FastAPI, and is imported when ``app.asgi()`` is called.
"""

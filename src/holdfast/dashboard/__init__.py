"""The dashboard: static pages in a browser, sessions for them, and the HTTP API that they use.

``assets`` serves the files, ``sessions`` turns a token into a cookie, and ``site`` assembles the ASGI application. The
pages use the HTTP API only (``holdfast.http``); this package reads nothing from the store.
"""

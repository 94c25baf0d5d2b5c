"""Settings of the test project: the default database is an SQLite file, ``pg`` is on PostgreSQL."""

import os
from urllib.parse import parse_qs, urlsplit

SECRET_KEY = "for tests only"
USE_TZ = True
ALLOWED_HOSTS = ["testserver"]
ROOT_URLCONF = "ext.django_project.urls"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "holdfast.ext.django",
    "ext.django_project.shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
MIGRATION_MODULES = dict.fromkeys(["admin", "auth", "contenttypes", "sessions"])  # creates the tables at once
TASKS = {
    "default": {
        "BACKEND": "holdfast.ext.django.tasks.HoldfastBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"retries": 0},
    }
}
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["HOLDFAST_TEST_DJANGO_FILE"]}}
if "HOLDFAST_TEST_DJANGO_URL" in os.environ:
    _parts = urlsplit(os.environ["HOLDFAST_TEST_DJANGO_URL"])
    DATABASES["pg"] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _parts.path[1:],
        "USER": _parts.username or "",
        "HOST": parse_qs(_parts.query).get("host", [_parts.hostname or ""])[0],
        "PORT": str(_parts.port or ""),
    }

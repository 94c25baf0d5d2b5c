"""Adapters to other libraries. Each module needs the library it is named after, and nothing else imports it."""

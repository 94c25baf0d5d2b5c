"""The replay machine and its loop, without a database: pure and fast."""

CREATE TABLE holdfast_worker (
    n            INTEGER PRIMARY KEY,  -- the order in which they came
    id           TEXT    NOT NULL UNIQUE,
    host         TEXT    NOT NULL,
    pid          INTEGER NOT NULL,
    queues       TEXT    NOT NULL,     -- a JSON list
    concurrency  INTEGER NOT NULL,
    started_at   INTEGER NOT NULL,
    seen_at      INTEGER NOT NULL,
    lease_until  INTEGER NOT NULL
) STRICT;

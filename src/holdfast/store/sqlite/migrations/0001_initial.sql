-- Columns of type ANY hold free text: TEXT, or the surrogatepass bytes of a string that is not valid Unicode.

CREATE TABLE holdfast_run (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice, so that a fence never meets a stranger
    instance      INTEGER NOT NULL,
    workflow      TEXT    NOT NULL,
    instance_id   TEXT    NOT NULL,
    number        INTEGER NOT NULL,
    current       INTEGER NOT NULL,
    kind          TEXT    NOT NULL,
    status        TEXT    NOT NULL,
    params        BLOB,
    output        BLOB,
    error         BLOB,
    queue         TEXT    NOT NULL,
    priority      INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    started_at    INTEGER,
    completed_at  INTEGER,
    seed          INTEGER NOT NULL,
    note          ANY,
    UNIQUE (workflow, instance_id, number)
) STRICT;

CREATE INDEX holdfast_run_list ON holdfast_run (workflow, instance) WHERE current = 1;
CREATE INDEX holdfast_run_status ON holdfast_run (workflow, status, instance) WHERE current = 1;

CREATE TABLE holdfast_task (
    run          INTEGER NOT NULL,
    unit         INTEGER NOT NULL,
    workflow     TEXT    NOT NULL,
    queue        TEXT    NOT NULL,
    bucket       INTEGER NOT NULL,
    kind         INTEGER NOT NULL,
    priority     INTEGER NOT NULL,
    run_at       INTEGER,
    owner        TEXT,
    lease_until  INTEGER,
    epoch        INTEGER NOT NULL,
    losses       INTEGER NOT NULL,
    lost         INTEGER NOT NULL,
    signal       INTEGER NOT NULL,
    topics       TEXT    NOT NULL,
    PRIMARY KEY (run, unit)
) STRICT, WITHOUT ROWID;

CREATE INDEX holdfast_task_due ON holdfast_task (queue, workflow, bucket, priority, run_at)
    WHERE owner IS NULL AND run_at IS NOT NULL;
CREATE INDEX holdfast_task_lease ON holdfast_task (owner, lease_until) WHERE owner IS NOT NULL;
CREATE INDEX holdfast_task_signal ON holdfast_task (owner) WHERE signal <> 0;

CREATE TABLE holdfast_fact (
    run           INTEGER NOT NULL,
    state         INTEGER NOT NULL,
    key           ANY     NOT NULL,
    n             INTEGER NOT NULL,
    kind          TEXT    NOT NULL,
    at            INTEGER NOT NULL,
    started_at    INTEGER NOT NULL,
    seq           INTEGER,
    ok            INTEGER NOT NULL,
    value         BLOB,
    name          ANY,
    attempts      INTEGER NOT NULL,
    max_attempts  INTEGER,
    timeout_ms    INTEGER,
    wake_at       INTEGER,
    event_type    TEXT,
    event         INTEGER,
    PRIMARY KEY (run, state, key, n)
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_event (
    run           INTEGER NOT NULL,
    n             INTEGER NOT NULL,
    type          TEXT    NOT NULL,
    payload       BLOB,
    created_at    INTEGER NOT NULL,
    sender        ANY,
    delivered_at  INTEGER,
    consumed_by   ANY,
    dedup         ANY,
    PRIMARY KEY (run, n)
) STRICT, WITHOUT ROWID;

CREATE INDEX holdfast_event_undelivered ON holdfast_event (run, n) WHERE delivered_at IS NULL;
CREATE UNIQUE INDEX holdfast_event_dedup ON holdfast_event (run, dedup) WHERE dedup IS NOT NULL;

CREATE TABLE holdfast_log (
    run        INTEGER NOT NULL,
    n          INTEGER NOT NULL,
    level      TEXT    NOT NULL,
    category   TEXT    NOT NULL,
    message    ANY     NOT NULL,
    data       BLOB,
    at         INTEGER NOT NULL,
    step_key   ANY,
    attempt    INTEGER,
    is_replay  INTEGER NOT NULL,
    PRIMARY KEY (run, n)
) STRICT, WITHOUT ROWID;

-- A run with what its task says: the columns of RunRecord in their order, then what the store itself looks at.
CREATE VIEW holdfast_record AS
SELECT r.id AS run, r.workflow, r.instance_id, r.number, r.kind, r.status, r.params, r.output, r.error, r.queue,
       r.priority, r.created_at, r.updated_at, r.started_at, r.completed_at, r.instance, r.seed, r.note,
       t.run_at, t.owner, t.losses, t.signal, t.epoch, t.topics, r.current
  FROM holdfast_run AS r
  LEFT JOIN holdfast_task AS t ON t.run = r.id AND t.unit = 0;

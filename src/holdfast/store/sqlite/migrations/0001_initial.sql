-- Columns of type ANY hold free text: TEXT, or the surrogatepass bytes of a string that is not valid Unicode.
--
-- A line is a sequence of runs of one instance in which each run but the first was requested by the run before it
-- (continue-as-new, another attempt, the next tick of a schedule). A restart begins a new line. The ids of events are
-- unique within a line.

CREATE TABLE holdfast_run (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused, so that an old claim never passes a fence
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
    parent        TEXT,
    parent_run    INTEGER,
    parent_close  TEXT,
    attempt       INTEGER NOT NULL DEFAULT 1,
    options       BLOB,
    memo          BLOB,
    search        BLOB,
    line          INTEGER,  -- the first run of its line; NULL: this run is the first
    version       TEXT,     -- the release that started it
    pinned        INTEGER NOT NULL DEFAULT 0,  -- only workers of its version claim it
    origin        BLOB,     -- the run whose history this one continues, as JSON
    forked_from   INTEGER,  -- the instance that this one was forked from
    retried       INTEGER NOT NULL DEFAULT 0,  -- errored, and its successor continues from its history
    error_name    TEXT GENERATED ALWAYS AS (iif(error IS NOT NULL AND json_valid(CAST(error AS TEXT)),
                                                CAST(error AS TEXT) ->> '$.name', NULL)) VIRTUAL,
    UNIQUE (workflow, instance_id, number)
) STRICT;

CREATE INDEX holdfast_run_list ON holdfast_run (workflow, instance) WHERE current = 1;
CREATE INDEX holdfast_run_status ON holdfast_run (workflow, status, instance) WHERE current = 1;
-- Filters of lists. An index of errors, versions and queues holds only the runs that have such a value.
CREATE INDEX holdfast_run_error ON holdfast_run (workflow, error_name, instance)
    WHERE current = 1 AND error_name IS NOT NULL;
CREATE INDEX holdfast_run_listed_version ON holdfast_run (workflow, version, instance)
    WHERE current = 1 AND version IS NOT NULL;
CREATE INDEX holdfast_run_queue ON holdfast_run (workflow, queue, instance) WHERE current = 1 AND queue <> 'default';
CREATE INDEX holdfast_run_fork ON holdfast_run (forked_from) WHERE forked_from IS NOT NULL;
CREATE INDEX holdfast_run_created ON holdfast_run (workflow, created_at) WHERE current = 1;
CREATE INDEX holdfast_run_ended ON holdfast_run (workflow, status, completed_at) WHERE completed_at IS NOT NULL;
CREATE INDEX holdfast_run_child ON holdfast_run (parent_run, instance) WHERE parent_run IS NOT NULL AND current = 1;
CREATE INDEX holdfast_run_living_child ON holdfast_run (parent_run)
    WHERE parent_run IS NOT NULL AND completed_at IS NULL;
CREATE INDEX holdfast_run_version ON holdfast_run (version, workflow) WHERE version IS NOT NULL AND completed_at IS NULL;

-- Unit 0 is the run itself. A graph has more units, which wait for each other.
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
    expires_at   INTEGER,
    expiry       TEXT,
    missing      INTEGER NOT NULL DEFAULT 0,  -- number of units that must be done before this one
    key          ANY,                         -- key of its START facts
    started_at   INTEGER,                     -- time of its last START fact
    lease_ms     INTEGER,                     -- its own lease duration, which heartbeats renew; NULL: the worker's
    pin          TEXT    NOT NULL DEFAULT '', -- the version of the workers that may claim it; empty: any
    permits      INTEGER NOT NULL DEFAULT 0,  -- 1: the task has, or had, permits
    has_tokens   INTEGER NOT NULL DEFAULT 0,  -- 1: the run has taken the tokens of its rates
    single       TEXT,                        -- key of the singleton group of the run; only in unit 0
    held_at      INTEGER,                     -- due time of a held run, once the run before it has ended
    resume_at    INTEGER,                     -- due time that a pause took away, for the resume
    gather       TEXT,                        -- key by which later starts find the run while it is pending
    items        INTEGER,                     -- number of starts in a batch
    fair_key     TEXT,                        -- key under which the run was started in bucket 3
    PRIMARY KEY (run, unit)
) STRICT, WITHOUT ROWID;

CREATE INDEX holdfast_task_due ON holdfast_task (queue, workflow, pin, bucket, priority, run_at)
    WHERE owner IS NULL AND run_at IS NOT NULL;
CREATE INDEX holdfast_task_lease ON holdfast_task (owner, lease_until) WHERE owner IS NOT NULL;
CREATE INDEX holdfast_task_signal ON holdfast_task (owner) WHERE signal <> 0;
CREATE INDEX holdfast_task_expiry ON holdfast_task (expires_at) WHERE expires_at IS NOT NULL;
-- Start policies: the executed run of a group, its held runs, and pending runs.
CREATE INDEX holdfast_task_single ON holdfast_task (workflow, single) WHERE single IS NOT NULL AND held_at IS NULL;
CREATE INDEX holdfast_task_held ON holdfast_task (workflow, single, run) WHERE held_at IS NOT NULL;
CREATE INDEX holdfast_task_gather ON holdfast_task (workflow, gather, run) WHERE gather IS NOT NULL AND epoch = 0;
-- Runs that have not begun, of workflows whose keys are claimed in turn.
CREATE INDEX holdfast_task_fair ON holdfast_task (queue, workflow, fair_key, priority, run)
    WHERE bucket = 3 AND owner IS NULL AND run_at IS NOT NULL;
-- Due units of one run: by unit, and by time.
CREATE INDEX holdfast_task_unit ON holdfast_task (run, unit)
    WHERE unit > 0 AND owner IS NULL AND run_at IS NOT NULL;
CREATE INDEX holdfast_task_unit_due ON holdfast_task (run, run_at)
    WHERE unit > 0 AND owner IS NULL AND run_at IS NOT NULL;

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
    ask           ANY,
    reply_ok      INTEGER,
    reply         BLOB,
    replied_at    INTEGER,
    line          INTEGER,  -- the line of the recipient; only with a dedup
    trace         TEXT,     -- the trace context of the sender
    PRIMARY KEY (run, n)
) STRICT, WITHOUT ROWID;

CREATE INDEX holdfast_event_undelivered ON holdfast_event (run, n) WHERE delivered_at IS NULL;
CREATE UNIQUE INDEX holdfast_event_dedup ON holdfast_event (line, dedup) WHERE dedup IS NOT NULL;
CREATE INDEX holdfast_event_type ON holdfast_event (run, type, n) WHERE delivered_at IS NULL;
-- The engine's own events: their types begin with @.
CREATE INDEX holdfast_event_engine ON holdfast_event (run, n)
    WHERE delivered_at IS NULL AND type >= '@' AND type < 'A';

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

-- A stream of a run: the number of its items, of those that the workflow's code wrote, and of its close markers.
CREATE TABLE holdfast_stream (
    run         INTEGER NOT NULL,
    name        TEXT    NOT NULL,
    items       INTEGER NOT NULL,
    size        INTEGER NOT NULL,
    code_items  INTEGER NOT NULL,
    markers     INTEGER NOT NULL,
    tail        INTEGER NOT NULL,  -- "first" of the last chunk
    PRIMARY KEY (run, name)
) STRICT, WITHOUT ROWID;

-- Adjacent items of one writer. step_key, epoch and attempt are NULL for the workflow's code.
CREATE TABLE holdfast_chunk (
    run       INTEGER NOT NULL,
    name      TEXT    NOT NULL,
    first     INTEGER NOT NULL,  -- the offset of the first item
    count     INTEGER NOT NULL,
    step_key  ANY,
    unit      INTEGER NOT NULL,
    epoch     INTEGER,
    attempt   INTEGER,
    start     INTEGER NOT NULL,  -- number of items that the writer wrote before
    closes    INTEGER NOT NULL,
    data      BLOB    NOT NULL,
    PRIMARY KEY (run, name, first)
) STRICT, WITHOUT ROWID;

CREATE INDEX holdfast_chunk_marker ON holdfast_chunk (run, name, first) WHERE closes = 1;

CREATE TABLE holdfast_watch (
    target   INTEGER NOT NULL,
    watcher  INTEGER NOT NULL,
    kind     INTEGER NOT NULL,  -- flags of Watch
    PRIMARY KEY (target, watcher)
) STRICT, WITHOUT ROWID;

CREATE INDEX holdfast_watch_watcher ON holdfast_watch (watcher);

-- Large runs that were deleted, until all of their rows are deleted.
CREATE TABLE holdfast_leftover (
    run   INTEGER PRIMARY KEY,
    keep  INTEGER NOT NULL  -- events with a key are kept
) STRICT;

-- References to blobs: large values outside of their rows. Counted by triggers, which exist once blobs are used.
CREATE TABLE holdfast_blob (
    id    TEXT    PRIMARY KEY,
    refs  INTEGER NOT NULL,
    used  INTEGER NOT NULL,  -- 1: a row refers to the blob, or did
    at    INTEGER NOT NULL   -- when the database received its first chunk; 0: the blob is elsewhere
) STRICT, WITHOUT ROWID;

CREATE INDEX holdfast_blob_garbage ON holdfast_blob (at) WHERE refs <= 0;

-- The content of blobs that the database holds.
CREATE TABLE holdfast_blob_chunk (
    id    TEXT    NOT NULL,
    n     INTEGER NOT NULL,
    data  BLOB    NOT NULL,
    PRIMARY KEY (id, n)
) STRICT;

-- One row while the database is fenced: it is the source or the target of a transfer, or was moved elsewhere.
CREATE TABLE holdfast_fence (
    id        INTEGER PRIMARY KEY,
    token     TEXT    NOT NULL,
    reason    TEXT    NOT NULL,
    position  TEXT
) STRICT;

-- Search terms of the current run of an instance. A value of type ANY keeps its type: 1 and '1' differ.
CREATE TABLE holdfast_term (
    workflow  TEXT    NOT NULL,
    key       ANY     NOT NULL,
    value     ANY     NOT NULL,
    instance  INTEGER NOT NULL,
    PRIMARY KEY (workflow, key, value, instance)
) STRICT, WITHOUT ROWID;

CREATE INDEX holdfast_term_instance ON holdfast_term (instance, key, value);

CREATE TABLE holdfast_outbox (
    run           INTEGER NOT NULL,
    n             INTEGER NOT NULL,
    step          ANY     NOT NULL,
    type          ANY     NOT NULL,
    payload       BLOB,
    created_at    INTEGER NOT NULL,
    attempts      INTEGER NOT NULL,
    run_at        INTEGER NOT NULL,
    error         ANY,
    delivered_at  INTEGER,
    parked_at     INTEGER,
    owner         TEXT,
    due_at        INTEGER,  -- only for the first pending event of a run: run_at, or the end of the owner's lease
    trace         TEXT,     -- the trace context of the turn that published the event
    PRIMARY KEY (run, n)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX holdfast_outbox_turn ON holdfast_outbox (run) WHERE due_at IS NOT NULL;
CREATE INDEX holdfast_outbox_due ON holdfast_outbox (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX holdfast_outbox_parked ON holdfast_outbox (run) WHERE parked_at IS NOT NULL;
CREATE INDEX holdfast_outbox_left ON holdfast_outbox (run, n) WHERE delivered_at IS NULL AND parked_at IS NULL;

-- Records of control requests; only added.
CREATE TABLE holdfast_audit (
    n        INTEGER PRIMARY KEY AUTOINCREMENT,
    at       INTEGER NOT NULL,
    actor    ANY,
    action   TEXT    NOT NULL,
    target   TEXT    NOT NULL,
    reason   ANY,
    outcome  TEXT    NOT NULL
) STRICT;

CREATE INDEX holdfast_audit_target ON holdfast_audit (target, n);

-- Bulk actions that run in the background.
CREATE TABLE holdfast_bulk (
    id           TEXT    PRIMARY KEY,
    created_at   INTEGER NOT NULL,
    content      BLOB    NOT NULL,
    position     INTEGER NOT NULL,
    upto         INTEGER NOT NULL,
    progress     BLOB    NOT NULL,
    owner        TEXT,
    lease_until  INTEGER,
    ended_at     INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX holdfast_bulk_open ON holdfast_bulk (id) WHERE ended_at IS NULL;

-- Schedules. A change names the revision that it was computed from.
CREATE TABLE holdfast_schedule (
    name         TEXT    PRIMARY KEY,
    workflow     TEXT    NOT NULL,
    content      BLOB    NOT NULL,     -- spec, policies and start options, as JSON
    params       BLOB,
    declaration  TEXT,                 -- digest of what the code declares; NULL: created at run time
    paused       INTEGER NOT NULL,
    note         ANY,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    revision     INTEGER NOT NULL,
    next_tick    INTEGER,              -- the next tick that is not taken up yet
    due_at       INTEGER,              -- when a worker looks at the schedule next
    seq          INTEGER NOT NULL,     -- number of ticks so far
    result       BLOB,                 -- output of the last successful run
    result_n     INTEGER NOT NULL      -- the tick of that run
) STRICT, WITHOUT ROWID;

CREATE INDEX holdfast_schedule_due ON holdfast_schedule (workflow, due_at) WHERE due_at IS NOT NULL;

CREATE TABLE holdfast_tick (
    schedule     TEXT    NOT NULL,
    n            INTEGER NOT NULL,
    tick         INTEGER NOT NULL,     -- the time for which its run is scheduled
    cause        TEXT    NOT NULL,
    overlap      TEXT    NOT NULL,
    state        TEXT    NOT NULL,
    workflow     TEXT    NOT NULL,
    instance_id  TEXT    NOT NULL,
    at           INTEGER NOT NULL,
    PRIMARY KEY (schedule, n)
) STRICT, WITHOUT ROWID;

CREATE INDEX holdfast_tick_open ON holdfast_tick (schedule, n) WHERE state IN ('started', 'cancelling');
CREATE INDEX holdfast_tick_queued ON holdfast_tick (schedule, n) WHERE state = 'queued';

CREATE TABLE holdfast_worker (
    n            INTEGER PRIMARY KEY,  -- order of registration
    id           TEXT    NOT NULL UNIQUE,
    host         TEXT    NOT NULL,
    pid          INTEGER NOT NULL,
    queues       TEXT    NOT NULL,     -- a JSON list
    concurrency  INTEGER NOT NULL,
    started_at   INTEGER NOT NULL,
    seen_at      INTEGER NOT NULL,
    lease_until  INTEGER NOT NULL,
    version      TEXT,
    draining     INTEGER NOT NULL DEFAULT 0  -- the worker claims nothing and gives up its turns
) STRICT;

-- Limits, and permits of attempts, units and runs (docs/architecture.md, "Flow control").

CREATE TABLE holdfast_limit (
    name         TEXT    PRIMARY KEY,
    concurrency  INTEGER,
    rate_count   INTEGER,
    rate_ms      INTEGER,
    burst        INTEGER,
    fair         INTEGER NOT NULL,
    weights      TEXT    NOT NULL,  -- a JSON object
    declared     TEXT               -- the values in the code, as JSON; NULL: created at run time
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_limit_use (
    name      TEXT    NOT NULL,
    key       TEXT    NOT NULL,
    used      INTEGER NOT NULL DEFAULT 0,  -- number of permits that are granted or held
    tat       INTEGER NOT NULL DEFAULT 0,  -- GCRA: the theoretical arrival time, in microseconds
    pass      REAL    NOT NULL DEFAULT 0,  -- of a fair limit: the pass of this key (stride scheduling)
    virtual   REAL    NOT NULL DEFAULT 0,  -- the virtual time: the highest pass that was granted
    ready_at  INTEGER,                     -- groups wait for the rate, which has room then
    freed     INTEGER NOT NULL DEFAULT 0,  -- 1: there may be room for waiting groups
    PRIMARY KEY (name, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX holdfast_limit_freed ON holdfast_limit_use (name, key) WHERE freed = 1;
CREATE INDEX holdfast_limit_ready ON holdfast_limit_use (ready_at) WHERE ready_at IS NOT NULL;

-- The keys that have runs in bucket 3, or had: a claim takes from the key with the lowest pass (stride scheduling).
CREATE TABLE holdfast_fair_key (
    queue     TEXT NOT NULL,
    workflow  TEXT NOT NULL,
    key       TEXT NOT NULL,
    pass      REAL NOT NULL,
    stride    REAL NOT NULL,  -- the inverse of the weight of the key
    PRIMARY KEY (queue, workflow, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX holdfast_fair_key_pass ON holdfast_fair_key (queue, workflow, pass);

-- Permits with the same limits and keys. A group with waiting permits waits at one limit, which has no room.
CREATE TABLE holdfast_permit_group (
    id             INTEGER PRIMARY KEY,
    limits         TEXT    NOT NULL,            -- a JSON list of [name, key]
    needs_tokens   INTEGER NOT NULL,            -- 0: permits of runs that have taken the tokens of their rates
    fair_name      TEXT,                        -- the first fair limit of the list
    fair_key       TEXT,
    waiting        INTEGER NOT NULL DEFAULT 0,  -- number of waiting permits
    name           TEXT,                        -- the blocking limit
    key            TEXT,
    pass           REAL    NOT NULL DEFAULT 0,  -- of the fair key, or of the first waiting permit
    head_priority  INTEGER,                     -- of the first waiting permit
    head           INTEGER,                     -- its id
    UNIQUE (limits, needs_tokens)
) STRICT;

CREATE INDEX holdfast_permit_group_next
    ON holdfast_permit_group (name, key, needs_tokens, pass, head_priority, head)
    WHERE waiting > 0;
CREATE INDEX holdfast_permit_group_fair ON holdfast_permit_group (fair_name, fair_key) WHERE waiting > 0;

CREATE TABLE holdfast_permit (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,  -- order of the requests
    run        INTEGER NOT NULL,
    unit       INTEGER NOT NULL,
    step       ANY     NOT NULL,  -- empty: the task as a whole
    attempt    INTEGER NOT NULL,
    grp        INTEGER NOT NULL,
    state      INTEGER NOT NULL,  -- 0: waiting, 1: granted, 2: held
    priority   INTEGER NOT NULL,
    tag        REAL    NOT NULL,  -- virtual time of the request
    until_end  INTEGER NOT NULL,
    owner      TEXT,              -- of the task; NULL: parked
    epoch      INTEGER NOT NULL,  -- of the task, when the permit was requested or parked
    parked     INTEGER,           -- the epoch under which it was parked
    requested_at  INTEGER NOT NULL,  -- the time of the request; a repeated request does not change it
    UNIQUE (run, unit, step, attempt)
) STRICT;

CREATE INDEX holdfast_permit_waiting ON holdfast_permit (grp, priority, id) WHERE state = 0;
CREATE INDEX holdfast_permit_granted ON holdfast_permit (owner) WHERE state = 1;

-- A permit belongs to its task: it is deleted when the ownership of the task ends, unless it was parked under this
-- ownership or is held until the end of the run.
CREATE TRIGGER holdfast_task_released AFTER UPDATE OF owner ON holdfast_task
WHEN OLD.permits = 1 AND OLD.owner IS NOT NULL AND (NEW.owner IS NOT OLD.owner OR NEW.epoch <> OLD.epoch)
BEGIN
    DELETE FROM holdfast_permit
     WHERE run = OLD.run AND unit = OLD.unit AND parked IS NOT OLD.epoch AND NOT (until_end = 1 AND state = 2);
    UPDATE holdfast_permit SET owner = NULL WHERE run = OLD.run AND unit = OLD.unit AND parked IS OLD.epoch;
END;

CREATE TRIGGER holdfast_task_deleted AFTER DELETE ON holdfast_task WHEN OLD.permits = 1
BEGIN
    DELETE FROM holdfast_permit WHERE run = OLD.run AND unit = OLD.unit;
END;

-- A paused run neither waits for permits nor keeps granted ones.
CREATE TRIGGER holdfast_run_paused AFTER UPDATE OF status ON holdfast_run
WHEN NEW.status = 'paused' AND OLD.status <> 'paused'
BEGIN
    DELETE FROM holdfast_permit WHERE run = NEW.id AND state < 2;
END;

CREATE TRIGGER holdfast_permit_returned AFTER DELETE ON holdfast_permit WHEN OLD.state > 0
BEGIN
    UPDATE holdfast_limit_use SET used = used - 1, freed = 1
     WHERE (name, key) IN (SELECT item.value ->> 0, item.value ->> 1
                             FROM holdfast_permit_group AS g, json_each(g.limits) AS item WHERE g.id = OLD.grp);
END;

CREATE TRIGGER holdfast_permit_withdrawn AFTER DELETE ON holdfast_permit WHEN OLD.state = 0
BEGIN
    UPDATE holdfast_permit_group SET waiting = waiting - 1 WHERE id = OLD.grp;
    UPDATE holdfast_permit_group
       SET (head_priority, head, pass) = (
               SELECT priority, id, iif(fair_name IS NULL, tag, pass) FROM holdfast_permit
                WHERE grp = OLD.grp AND state = 0 ORDER BY priority, id LIMIT 1)
     WHERE id = OLD.grp AND waiting > 0;
END;

-- The next held run of a group is due when the run before it has ended, unless that run has a successor. A paused run is
-- not held any more either; its resume makes it due.
CREATE TRIGGER holdfast_single_ended AFTER DELETE ON holdfast_task
WHEN OLD.single IS NOT NULL AND OLD.held_at IS NULL
     AND NOT EXISTS (SELECT 1 FROM holdfast_task
                      WHERE workflow = OLD.workflow AND single = OLD.single AND held_at IS NULL)
BEGIN
    UPDATE holdfast_task
       SET (run_at, resume_at) = (
               SELECT iif(r.status = 'paused', NULL, h.held_at), iif(r.status = 'paused', h.held_at, NULL)
                 FROM holdfast_task AS h JOIN holdfast_run AS r ON r.id = h.run
                WHERE h.run = holdfast_task.run AND h.unit = 0)
     WHERE run = (SELECT n.run FROM holdfast_task AS n INDEXED BY holdfast_task_held
                   WHERE n.workflow = OLD.workflow AND n.single = OLD.single AND n.held_at IS NOT NULL
                   ORDER BY n.run LIMIT 1)
       AND missing = 0;
    UPDATE holdfast_task SET held_at = NULL
     WHERE unit = 0
       AND run = (SELECT n.run FROM holdfast_task AS n INDEXED BY holdfast_task_held
                   WHERE n.workflow = OLD.workflow AND n.single = OLD.single AND n.held_at IS NOT NULL
                   ORDER BY n.run LIMIT 1);
END;

-- Queues that the code declares, or that were paused. A queue without a row is not paused.
CREATE TABLE holdfast_queue (
    name      TEXT    PRIMARY KEY,
    paused    INTEGER NOT NULL,
    declared  INTEGER            -- the value of paused in the code; NULL: not declared
) STRICT, WITHOUT ROWID;

-- Counts of runs that ended up to the watermark, so that statistics need not read finished runs. minute -1: the
-- watermark itself, as a time in `count`; 0: all runs; otherwise the runs that ended, and the instances that were started,
-- in this minute, for a day, then in this hour, for a week.
-- minute -2: the stored runs that were retried, on either side of the watermark; statistics subtract them.
CREATE TABLE holdfast_tally (
    minute    INTEGER NOT NULL,
    workflow  TEXT    NOT NULL,
    status    TEXT    NOT NULL,
    count     INTEGER NOT NULL,
    PRIMARY KEY (minute, workflow, status)
) STRICT, WITHOUT ROWID;

-- Runs that ended up to the watermark and are deleted, imported, or run again.
CREATE TRIGGER holdfast_tally_delete AFTER DELETE ON holdfast_run
WHEN OLD.completed_at IS NOT NULL AND OLD.completed_at <= (SELECT count FROM holdfast_tally WHERE minute = -1)
BEGIN
    UPDATE holdfast_tally SET count = count - 1
     WHERE minute = 0 AND workflow = OLD.workflow AND status = OLD.status;
END;

CREATE TRIGGER holdfast_tally_update AFTER UPDATE OF completed_at ON holdfast_run
WHEN OLD.completed_at IS NOT NULL AND OLD.completed_at <= (SELECT count FROM holdfast_tally WHERE minute = -1)
BEGIN
    UPDATE holdfast_tally SET count = count - 1
     WHERE minute = 0 AND workflow = OLD.workflow AND status = OLD.status;
END;

CREATE TRIGGER holdfast_tally_insert AFTER INSERT ON holdfast_run
WHEN NEW.completed_at IS NOT NULL AND NEW.completed_at <= (SELECT count FROM holdfast_tally WHERE minute = -1)
BEGIN
    INSERT INTO holdfast_tally VALUES (0, NEW.workflow, NEW.status, 1)
    ON CONFLICT (minute, workflow, status) DO UPDATE SET count = count + 1;
END;

-- Runs that are retried, or deleted or imported after they were.
CREATE TRIGGER holdfast_tally_retry AFTER UPDATE OF retried ON holdfast_run WHEN NEW.retried > OLD.retried
BEGIN
    INSERT INTO holdfast_tally VALUES (-2, NEW.workflow, NEW.status, 1)
    ON CONFLICT (minute, workflow, status) DO UPDATE SET count = count + 1;
END;

CREATE TRIGGER holdfast_tally_insert_retried AFTER INSERT ON holdfast_run WHEN NEW.retried = 1
BEGIN
    INSERT INTO holdfast_tally VALUES (-2, NEW.workflow, NEW.status, 1)
    ON CONFLICT (minute, workflow, status) DO UPDATE SET count = count + 1;
END;

CREATE TRIGGER holdfast_tally_delete_retried AFTER DELETE ON holdfast_run WHEN OLD.retried = 1
BEGIN
    UPDATE holdfast_tally SET count = count - 1
     WHERE minute = -2 AND workflow = OLD.workflow AND status = OLD.status;
END;

-- The names of all workflows that have runs, by one seek for each.
CREATE VIEW holdfast_workflow AS
WITH RECURSIVE workflow (name) AS (
    SELECT min(workflow) FROM holdfast_run INDEXED BY holdfast_run_status WHERE current = 1
    UNION ALL
    SELECT (SELECT min(r.workflow) FROM holdfast_run AS r INDEXED BY holdfast_run_status
             WHERE r.current = 1 AND r.workflow > workflow.name)
      FROM workflow WHERE workflow.name IS NOT NULL
)
SELECT name FROM workflow WHERE name IS NOT NULL;

-- A run joined with its task: the columns of RunRecord in their order, then columns that only the store uses.
CREATE VIEW holdfast_record AS
SELECT r.id AS run, r.workflow, r.instance_id, r.number, r.kind, r.status, r.params, r.output, r.error, r.queue,
       r.priority, r.created_at, r.updated_at, r.started_at, r.completed_at, r.instance, r.seed, r.note,
       r.parent, r.attempt, r.options, r.memo, r.search, r.current, r.version, r.pinned, r.origin,
       t.run_at, t.owner, t.losses, t.signal, t.expires_at, t.expiry, t.epoch, t.topics, t.lost, t.kind AS task_kind,
       r.error_name
  FROM holdfast_run AS r
  LEFT JOIN holdfast_task AS t ON t.run = r.id AND t.unit = 0;

-- Chains and graphs as tables, for users' queries. Text that is not valid Unicode is shown as a literal of its bytes.

CREATE VIEW holdfast_chain_instance AS
SELECT r.id AS run, r.instance_id, r.workflow AS workflow_type,
       CAST(r.options AS TEXT) ->> '$.version' AS workflow_version,
       CASE r.status WHEN 'complete' THEN 'COMPLETED' WHEN 'errored' THEN 'FAILED'
            WHEN 'cancelled' THEN 'CANCELED' WHEN 'terminated' THEN 'CANCELED' ELSE 'RUNNING' END AS status,
       p.n AS current_step_seq,
       iif(typeof(p.key) = 'blob', quote(p.key), p.key) AS current_step_type,
       r.created_at,
       iif(r.status = 'complete', r.completed_at, NULL) AS completed_at,
       iif(r.status = 'errored', r.completed_at, NULL) AS failed_at
  FROM holdfast_run AS r
  LEFT JOIN holdfast_fact AS p
    ON p.run = r.id AND p.state = 3
   AND p.n = (SELECT coalesce(min(iif(d.run IS NULL, c.n, NULL)), max(c.n))
                FROM holdfast_fact AS c
                LEFT JOIN holdfast_fact AS d
                  ON d.run = c.run AND d.state = 0 AND d.key = c.key AND d.n = 0 AND d.ok = 1
               WHERE c.run = r.id AND c.state = 3)
 WHERE r.kind = 'chain';

CREATE VIEW holdfast_chain_step AS
WITH step AS (
    SELECT i.run, i.instance_id, p.n AS seq, p.key, p.max_attempts, i.current_step_seq AS current,
           d.ok, d.attempts, d.value,
           t.owner, t.lease_until, t.run_at, t.lost,
           (SELECT count(*) FROM holdfast_fact AS f WHERE f.run = p.run AND f.state = 2 AND f.key = p.key) AS failures,
           (SELECT max(f.n) FROM holdfast_fact AS f WHERE f.run = p.run AND f.state = 2 AND f.key = p.key) AS failed,
           (SELECT max(s.n) FROM holdfast_fact AS s
             WHERE s.run = p.run AND s.state = 1 AND s.key = p.key
               AND NOT EXISTS (SELECT 1 FROM holdfast_fact AS k
                                WHERE k.run = s.run AND k.state = 4 AND k.key = s.key AND k.n = s.n)) AS wait
      FROM holdfast_chain_instance AS i
     CROSS JOIN holdfast_fact AS p ON p.run = i.run AND p.state = 3
      LEFT JOIN holdfast_fact AS d ON d.run = p.run AND d.state = 0 AND d.key = p.key AND d.n = 0
      LEFT JOIN holdfast_task AS t ON t.run = i.run AND t.unit = 0 AND p.n = i.current_step_seq
),
shown AS (
    SELECT step.*, f.value AS failure, w.event_type, w.wake_at,
           CASE WHEN step.ok = 1 THEN 'DONE'
                WHEN step.ok = 0 THEN 'DEAD'
                WHEN step.seq > step.current THEN 'PENDING'
                WHEN step.owner IS NOT NULL THEN 'RUNNING'
                WHEN w.run IS NOT NULL AND (step.run_at IS NULL OR step.run_at >= w.wake_at) THEN 'WAITING'
                ELSE 'READY' END AS status
      FROM step
      LEFT JOIN holdfast_fact AS f ON f.run = step.run AND f.state = 2 AND f.key = step.key AND f.n = step.failed
      LEFT JOIN holdfast_fact AS w ON w.run = step.run AND w.state = 1 AND w.key = step.key AND w.n = step.wait
)
SELECT run, instance_id, seq AS step_seq,
       iif(typeof(key) = 'blob', quote(key), key) AS step_type,
       status,
       coalesce(attempts, failures + coalesce(lost, 0)) AS attempts,
       max_attempts,
       iif(status = 'READY', run_at, NULL) AS next_run_at,
       iif(status = 'RUNNING', owner, NULL) AS locked_by,
       iif(status = 'RUNNING', lease_until, NULL) AS locked_until,
       iif(status = 'WAITING', event_type, NULL) AS waiting_event_type,
       iif(status = 'WAITING', wake_at, NULL) AS deadline_at,
       CASE WHEN lost = 1 AND ok IS NULL THEN 'LEASE_EXPIRED'
            WHEN ok = 0 THEN CAST(value AS TEXT) ->> '$.message'
            ELSE CAST(failure AS TEXT) ->> '$.message' END AS last_error
  FROM shown;

CREATE VIEW holdfast_graph_fact AS
SELECT r.id AS run, r.workflow || '/' || r.instance_id AS pid,
       CASE f.state WHEN 0 THEN 'result/' || iif(typeof(f.key) = 'blob', quote(f.key), f.key)
                    WHEN 1 THEN 'start/' || iif(typeof(f.key) = 'blob', quote(f.key), f.key) || '/' || f.at
                    WHEN 3 THEN 'meta'
                    ELSE 'tombstone' END AS key,
       CASE f.state
            WHEN 0 THEN json_object(
                'status', CASE WHEN f.kind = 'skipped' THEN 'skipped' WHEN f.ok = 1 THEN 'ok' ELSE 'error' END,
                'data', json(CAST(f.value AS TEXT)), 'ts', f.at)
            WHEN 6 THEN json_object(
                'reason', json(coalesce(CAST(f.value AS TEXT) -> '$.reason', CAST(f.value AS TEXT))), 'ts', f.at)
            ELSE CAST(f.value AS TEXT) END AS value
  FROM holdfast_run AS r CROSS JOIN holdfast_fact AS f ON f.run = r.id
 WHERE r.kind = 'graph' AND (f.state IN (0, 1, 6) OR (f.state = 3 AND f.key = 'meta'));

-- Tables, indexes, the record view and the composite types.
--
-- {schema} is replaced by the store's schema, {channel} by the name of its notification channel.
-- BYTEA columns that hold text contain UTF-8 encoded with surrogatepass: TEXT accepts neither NUL nor lone surrogates.
-- Names have COLLATE "C": they compare byte by byte, as everywhere else in the engine, and faster than in a language's
-- collation.

CREATE SEQUENCE {schema}.holdfast_run_id;  -- ids are never reused, so a stale fence cannot match another run

CREATE TABLE {schema}.holdfast_run (
    id            BIGINT   NOT NULL PRIMARY KEY,
    instance      BIGINT   NOT NULL,
    workflow      TEXT     COLLATE "C" NOT NULL,
    instance_id   TEXT     COLLATE "C" NOT NULL,
    number        BIGINT   NOT NULL,
    current       BOOLEAN  NOT NULL,
    kind          TEXT     NOT NULL,
    status        TEXT     COLLATE "C" NOT NULL,
    params        BYTEA,
    output        BYTEA,
    error         BYTEA,
    queue         TEXT     COLLATE "C" NOT NULL,
    priority      BIGINT   NOT NULL,
    created_at    BIGINT   NOT NULL,
    updated_at    BIGINT   NOT NULL,
    started_at    BIGINT,
    completed_at  BIGINT,
    seed          BIGINT   NOT NULL,
    note          BYTEA,
    made_by       BIGINT,  -- token of the call that created it; identifies the row when the call is retried
    parent        TEXT     COLLATE "C",
    parent_run    BIGINT,
    parent_close  TEXT,
    attempt       BIGINT   NOT NULL DEFAULT 1,
    options       BYTEA,
    memo          BYTEA,
    search        BYTEA,
    line          BIGINT,  -- the first run of the line (holdfast_end_with_successor continues one); NULL: this run
    version       TEXT     COLLATE "C",  -- the release that started it
    pinned        BOOLEAN  NOT NULL DEFAULT false,  -- only workers of its version claim it
    origin        BYTEA,   -- the run whose history this one continues, as JSON
    forked_from   BIGINT,  -- the instance that this one was forked from
    retried       BOOLEAN  NOT NULL DEFAULT false,  -- errored, and its successor continues from its history
    -- The name in the JSON of the error, as it is written there; the same expression is in holdfast_error_name.
    error_name    TEXT     COLLATE "C" GENERATED ALWAYS AS (left(substring(
        encode(substring(error FROM 1 FOR 1000), 'escape')
        FROM '^ ?{"name": ?"((?:[^"\\]|\\[0-7]{3}|\\\\(?:\\\\|[^\\]))*)"'), 200)) STORED,
    UNIQUE (workflow, instance_id, number)
) WITH (fillfactor = 85);

-- Also used for lists of runs of any status, one range per status: an index without the status column would be one more
-- index to write with each change of a run.
CREATE INDEX holdfast_run_status ON {schema}.holdfast_run (workflow, status, instance) WHERE current;
-- Filters of lists. An index of errors, versions and queues holds only the runs that have such a value.
CREATE INDEX holdfast_run_error ON {schema}.holdfast_run (workflow, error_name, instance)
    WHERE current AND error_name IS NOT NULL;
CREATE INDEX holdfast_run_listed_version ON {schema}.holdfast_run (workflow, version, instance)
    WHERE current AND version IS NOT NULL;
CREATE INDEX holdfast_run_queue ON {schema}.holdfast_run (workflow, queue, instance)
    WHERE current AND queue <> 'default';
CREATE INDEX holdfast_run_fork ON {schema}.holdfast_run (forked_from) WHERE forked_from IS NOT NULL;
CREATE INDEX holdfast_run_created ON {schema}.holdfast_run (workflow, created_at) WHERE current;
CREATE INDEX holdfast_run_ended ON {schema}.holdfast_run (workflow, status, completed_at)
    WHERE completed_at IS NOT NULL;
CREATE INDEX holdfast_run_child ON {schema}.holdfast_run (parent_run, instance)
    WHERE parent_run IS NOT NULL AND current;
CREATE INDEX holdfast_run_living_child ON {schema}.holdfast_run (parent_run)
    WHERE parent_run IS NOT NULL AND completed_at IS NULL;
CREATE INDEX holdfast_run_version ON {schema}.holdfast_run (version, workflow)
    WHERE version IS NOT NULL AND completed_at IS NULL;

-- The hot table: small, and every row is updated many times. It has free space in its pages and early vacuums.
CREATE TABLE {schema}.holdfast_task (
    run          BIGINT   NOT NULL,
    unit         BIGINT   NOT NULL,
    workflow     TEXT     COLLATE "C" NOT NULL,
    queue        TEXT     COLLATE "C" NOT NULL,
    bucket       INTEGER  NOT NULL,
    kind         INTEGER  NOT NULL,
    priority     BIGINT   NOT NULL,
    run_at       BIGINT,
    owner        TEXT     COLLATE "C",
    lease_until  BIGINT,   -- set by the claim; a heartbeat moves only the worker's lease (holdfast_worker)
    lease_ms     BIGINT,   -- the task's own lease, counted from the worker's last heartbeat; NULL: the worker's
    epoch        BIGINT   NOT NULL,
    losses       INTEGER  NOT NULL,
    lost         BOOLEAN  NOT NULL,
    signal       INTEGER  NOT NULL,
    topics       TEXT     NOT NULL,
    claimed_by   BIGINT,   -- token of the call that claimed it; identifies the row when the call is retried
    expires_at   BIGINT,
    expiry       TEXT,
    bound        BOOLEAN  NOT NULL DEFAULT false,  -- the run watches, is watched or has children, or did: its
                                                   -- end may affect other runs. Set with the task locked
    missing      BIGINT,   -- number of units that must be done first; NULL: the run has no units but 0
    key          BYTEA,    -- key of the unit's START facts; NULL for unit 0
    pin          TEXT     COLLATE "C" NOT NULL DEFAULT '',  -- version of the workers that may claim it; empty: any
    permits      BOOLEAN  NOT NULL DEFAULT false,  -- the task has, or had, permits
    has_tokens   BOOLEAN  NOT NULL DEFAULT false,  -- the run has taken the tokens of its rates
    single       TEXT     COLLATE "C",  -- key of the singleton group of the run; only in unit 0
    held_at      BIGINT,   -- due time of a held run, once the run before it has ended
    resume_at    BIGINT,   -- due time that a pause took away, for the resume
    gather       TEXT     COLLATE "C",  -- key by which later starts find the run while it is pending
    items        BIGINT,   -- number of starts in a batch
    gathered     BIGINT[], -- tokens of the starts that the run stands for, so that a repeated call finds them
    fair_key     TEXT     COLLATE "C",  -- key under which the run was started in bucket 3
    PRIMARY KEY (run, unit)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,
        autovacuum_analyze_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX holdfast_task_due ON {schema}.holdfast_task (queue, workflow, pin, bucket, priority, run_at, run, unit)
    WHERE owner IS NULL AND run_at IS NOT NULL;
-- Due units of one run by number, and the earliest due time of the run's units.
CREATE INDEX holdfast_task_unit ON {schema}.holdfast_task (run, unit)
    WHERE owner IS NULL AND run_at IS NOT NULL AND unit > 0;
CREATE INDEX holdfast_task_unit_due ON {schema}.holdfast_task (run, run_at)
    WHERE owner IS NULL AND run_at IS NOT NULL AND unit > 0;
CREATE INDEX holdfast_task_lease ON {schema}.holdfast_task (owner, lease_until) WHERE owner IS NOT NULL;
-- The few tasks with a lease of their own, which can expire while their worker's lease is valid.
CREATE INDEX holdfast_task_own_lease ON {schema}.holdfast_task (owner, lease_until) WHERE lease_ms IS NOT NULL;
CREATE INDEX holdfast_task_signal ON {schema}.holdfast_task (owner) WHERE signal <> 0;
CREATE INDEX holdfast_task_expiry ON {schema}.holdfast_task (expires_at) WHERE expires_at IS NOT NULL;
-- Runs that have not begun, of workflows whose keys are claimed in turn.
CREATE INDEX holdfast_task_fair ON {schema}.holdfast_task (queue, workflow, fair_key, priority, run)
    WHERE bucket = 3 AND owner IS NULL AND run_at IS NOT NULL;
-- Start policies: the executed run of a group, its held runs, and pending runs.
CREATE INDEX holdfast_task_single ON {schema}.holdfast_task (workflow, single)
    WHERE single IS NOT NULL AND held_at IS NULL;
CREATE INDEX holdfast_task_held ON {schema}.holdfast_task (workflow, single, run) WHERE held_at IS NOT NULL;
CREATE INDEX holdfast_task_gather ON {schema}.holdfast_task (workflow, gather, run)
    WHERE gather IS NOT NULL AND epoch = 0;

CREATE TABLE {schema}.holdfast_fact (
    run           BIGINT    NOT NULL,
    state         SMALLINT  NOT NULL,
    key           BYTEA     NOT NULL,
    n             BIGINT    NOT NULL,
    kind          TEXT      NOT NULL,
    at            BIGINT    NOT NULL,
    started_at    BIGINT    NOT NULL,
    seq           BIGINT,
    ok            BOOLEAN   NOT NULL,
    value         BYTEA,
    name          BYTEA,
    attempts      BIGINT    NOT NULL,
    max_attempts  BIGINT,
    timeout_ms    BIGINT,
    wake_at       BIGINT,
    event_type    TEXT,
    event         BIGINT,
    written_by    BIGINT,  -- token of the call that wrote it, if the call left no receipt; for retries
    PRIMARY KEY (run, state, key, n)
);

CREATE TABLE {schema}.holdfast_event (
    run           BIGINT  NOT NULL,
    n             BIGINT  NOT NULL,
    type          TEXT    COLLATE "C" NOT NULL,
    payload       BYTEA,
    created_at    BIGINT  NOT NULL,
    sender        BYTEA,
    delivered_at  BIGINT,
    consumed_by   BYTEA,
    ask           BYTEA,
    dedup         BYTEA,   -- the sender's key, or one made for the call (not valid UTF-8); NULL: engine event
    sent_by       BIGINT,  -- token of the call that sent it; identifies the row when the call is retried
    line          BIGINT,  -- line of the receiving run, if dedup is set: keys are unique per line
    reply_ok      BOOLEAN, -- NULL: no reply yet
    reply         BYTEA,
    trace         TEXT,    -- the trace context of the sender
    PRIMARY KEY (run, n)
);

CREATE INDEX holdfast_event_undelivered ON {schema}.holdfast_event (run, n) WHERE delivered_at IS NULL;
CREATE INDEX holdfast_event_type ON {schema}.holdfast_event (run, type, n) WHERE delivered_at IS NULL;
CREATE UNIQUE INDEX holdfast_event_dedup ON {schema}.holdfast_event (line, dedup) WHERE dedup IS NOT NULL;

CREATE TABLE {schema}.holdfast_log (
    run        BIGINT   NOT NULL,
    n          BIGINT   NOT NULL,
    level      TEXT     NOT NULL,
    category   TEXT     NOT NULL,
    message    BYTEA    NOT NULL,
    data       BYTEA,
    at         BIGINT   NOT NULL,
    step_key   BYTEA,
    attempt    BIGINT,
    is_replay  BOOLEAN  NOT NULL,
    PRIMARY KEY (run, n)
);

-- A stream of a run: the number of its items, of those that the workflow's code wrote, and of its close markers.
CREATE TABLE {schema}.holdfast_stream (
    run         BIGINT  NOT NULL,
    name        TEXT    NOT NULL,
    items       BIGINT  NOT NULL,
    size        BIGINT  NOT NULL,
    code_items  BIGINT  NOT NULL,
    markers     BIGINT  NOT NULL,
    tail        BIGINT  NOT NULL,  -- "first" of the last chunk
    PRIMARY KEY (run, name)
);

-- Adjacent items of one writer. step_key, epoch and attempt are NULL for the workflow's code.
CREATE TABLE {schema}.holdfast_chunk (
    run       BIGINT   NOT NULL,
    name      TEXT     NOT NULL,
    first     BIGINT   NOT NULL,  -- the offset of the first item
    count     BIGINT   NOT NULL,
    step_key  BYTEA,
    unit      BIGINT   NOT NULL,
    epoch     BIGINT,
    attempt   BIGINT,
    start     BIGINT   NOT NULL,  -- number of items that the writer wrote before
    closes    BOOLEAN  NOT NULL,
    data      BYTEA    NOT NULL,
    PRIMARY KEY (run, name, first)
);

CREATE INDEX holdfast_chunk_marker ON {schema}.holdfast_chunk (run, name, first) WHERE closes;

CREATE TABLE {schema}.holdfast_watch (
    target   BIGINT   NOT NULL,
    watcher  BIGINT   NOT NULL,
    kind     INTEGER  NOT NULL,  -- flags
    PRIMARY KEY (target, watcher)
);

CREATE INDEX holdfast_watch_watcher ON {schema}.holdfast_watch (watcher, target);

-- Outbound events: pending, delivered or parked.
CREATE TABLE {schema}.holdfast_outbox (
    run           BIGINT  NOT NULL,
    n             BIGINT  NOT NULL,
    step          BYTEA   NOT NULL,
    type          BYTEA   NOT NULL,
    payload       BYTEA,
    created_at    BIGINT  NOT NULL,
    attempts      BIGINT  NOT NULL DEFAULT 0,
    run_at        BIGINT  NOT NULL,
    error         BYTEA,
    delivered_at  BIGINT,
    parked_at     BIGINT,
    trace         TEXT,    -- the trace context of the turn that published the event
    PRIMARY KEY (run, n)
);

CREATE INDEX holdfast_outbox_left ON {schema}.holdfast_outbox (run, n) WHERE delivered_at IS NULL AND parked_at IS NULL;
CREATE INDEX holdfast_outbox_parked ON {schema}.holdfast_outbox (run, n) WHERE parked_at IS NOT NULL;

-- One row for each run with pending outbound events; it names the first of them. A claim reads only this table, so its
-- cost does not depend on the number of events behind the first. Every transaction that adds to a run's outbox or
-- delivers from it locks the run's row here, so that the row cannot be deleted while an event is being added.
CREATE TABLE {schema}.holdfast_outlet (
    run         BIGINT  NOT NULL PRIMARY KEY,
    n           BIGINT  NOT NULL,
    run_at      BIGINT  NOT NULL,  -- when the event can be claimed; while it is owned, the end of the lease
    owner       TEXT    COLLATE "C",
    claimed_by  BIGINT             -- token of the call that claimed it; identifies the row when the call is retried
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

CREATE INDEX holdfast_outlet_due ON {schema}.holdfast_outlet (run_at, run);

-- Large runs that were deleted, until all of their rows are deleted.
CREATE TABLE {schema}.holdfast_leftover (
    run   BIGINT   NOT NULL PRIMARY KEY,
    keep  BOOLEAN  NOT NULL  -- events with a key are kept
);

-- References to blobs: large values outside of their rows. Counted by triggers, which exist once blobs are used.
CREATE TABLE {schema}.holdfast_blob (
    id    TEXT     COLLATE "C" NOT NULL PRIMARY KEY,
    refs  BIGINT   NOT NULL,
    used  BOOLEAN  NOT NULL,  -- a row refers to the blob, or did
    at    BIGINT   NOT NULL   -- when the database received its first chunk; 0: the blob is elsewhere
);

CREATE INDEX holdfast_blob_garbage ON {schema}.holdfast_blob (at) WHERE refs <= 0;

-- The content of blobs that the database holds.
CREATE TABLE {schema}.holdfast_blob_chunk (
    id    TEXT     COLLATE "C" NOT NULL,
    n     BIGINT   NOT NULL,
    data  BYTEA    NOT NULL,
    PRIMARY KEY (id, n)
);

-- One row while the database is fenced: it is the source or the target of a transfer, or was moved elsewhere.
CREATE TABLE {schema}.holdfast_fence (
    id        INTEGER  NOT NULL PRIMARY KEY,
    token     TEXT     NOT NULL,
    reason    TEXT     NOT NULL,
    position  TEXT
);

-- Search terms of the current run of an instance: a text or a number. The index holds only the beginning of a text
-- (column head), because a long text does not fit into an index page.
CREATE TABLE {schema}.holdfast_term (
    instance  BIGINT  NOT NULL,
    workflow  TEXT    COLLATE "C" NOT NULL,
    key       BYTEA   NOT NULL,
    text      BYTEA,
    number    NUMERIC,
    head      BYTEA   GENERATED ALWAYS AS (substring(text FROM 1 FOR 1000)) STORED
);

CREATE INDEX holdfast_term_instance ON {schema}.holdfast_term (instance, key);
CREATE INDEX holdfast_term_text ON {schema}.holdfast_term (workflow, key, head, instance) WHERE head IS NOT NULL;
CREATE INDEX holdfast_term_number ON {schema}.holdfast_term (workflow, key, number, instance) WHERE number IS NOT NULL;

-- One row for each owner that sends heartbeats; host is set for registered workers. Only the primary key is indexed, so
-- that a heartbeat is one HOT update however many tasks the worker owns.
CREATE TABLE {schema}.holdfast_worker (
    id           TEXT    COLLATE "C" NOT NULL PRIMARY KEY,
    host         TEXT,
    pid          BIGINT,
    queues       TEXT[],
    concurrency  BIGINT,
    started_at   BIGINT  NOT NULL,
    seen_at      BIGINT  NOT NULL,
    lease_until  BIGINT  NOT NULL,
    version      TEXT,
    draining     BOOLEAN NOT NULL DEFAULT false  -- the worker claims nothing and gives up its turns
) WITH (fillfactor = 50);

-- Records of control requests; only added.
CREATE TABLE {schema}.holdfast_audit (
    n        BIGINT  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       BIGINT  NOT NULL,
    actor    BYTEA,
    action   TEXT    NOT NULL,
    target   TEXT    COLLATE "C" NOT NULL,
    reason   BYTEA,
    outcome  TEXT    NOT NULL
);

CREATE INDEX holdfast_audit_target ON {schema}.holdfast_audit (target, n);

-- Bulk actions that run in the background.
CREATE TABLE {schema}.holdfast_bulk (
    id           TEXT    COLLATE "C" NOT NULL PRIMARY KEY,
    created_at   BIGINT  NOT NULL,
    content      BYTEA   NOT NULL,
    position     BIGINT  NOT NULL,
    upto         BIGINT  NOT NULL,
    progress     BYTEA   NOT NULL,
    owner        TEXT    COLLATE "C",
    lease_until  BIGINT,
    ended_at     BIGINT
);

CREATE INDEX holdfast_bulk_open ON {schema}.holdfast_bulk (id) WHERE ended_at IS NULL;

-- Schedules. A change names the revision that it was computed from.
CREATE TABLE {schema}.holdfast_schedule (
    name         TEXT     COLLATE "C" NOT NULL PRIMARY KEY,
    workflow     TEXT     COLLATE "C" NOT NULL,
    content      BYTEA    NOT NULL,     -- spec, policies and start options, as JSON
    params       BYTEA,
    declaration  TEXT,                  -- digest of what the code declares; NULL: created at run time
    paused       BOOLEAN  NOT NULL,
    note         BYTEA,
    created_at   BIGINT   NOT NULL,
    updated_at   BIGINT   NOT NULL,
    revision     BIGINT   NOT NULL,
    next_tick    BIGINT,                -- the next tick that is not taken up yet
    due_at       BIGINT,                -- when a worker looks at the schedule next
    seq          BIGINT   NOT NULL,     -- number of ticks so far
    result       BYTEA,                 -- output of the last successful run
    result_n     BIGINT   NOT NULL      -- the tick of that run
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX holdfast_schedule_due ON {schema}.holdfast_schedule (workflow, due_at) WHERE due_at IS NOT NULL;

CREATE TABLE {schema}.holdfast_tick (
    schedule     TEXT     COLLATE "C" NOT NULL,
    n            BIGINT   NOT NULL,
    tick         BIGINT   NOT NULL,     -- the time for which its run is scheduled
    cause        TEXT     NOT NULL,
    overlap      TEXT     NOT NULL,
    state        TEXT     COLLATE "C" NOT NULL,
    workflow     TEXT     COLLATE "C" NOT NULL,
    instance_id  TEXT     COLLATE "C" NOT NULL,
    at           BIGINT   NOT NULL,
    PRIMARY KEY (schedule, n)
);

CREATE INDEX holdfast_tick_open ON {schema}.holdfast_tick (schedule, n) WHERE state IN ('started', 'cancelling');
CREATE INDEX holdfast_tick_queued ON {schema}.holdfast_tick (schedule, n) WHERE state = 'queued';

-- The last batch of commits of each sequence of calls, and its result; a store has one sequence for each call that it
-- makes concurrently.
-- A call whose reply was lost is repeated with the same number and returns the stored result; a call with an older
-- number fails.
CREATE TABLE {schema}.holdfast_receipt (
    store     TEXT       COLLATE "C" NOT NULL,
    sequence  INTEGER    NOT NULL,
    n         BIGINT     NOT NULL,
    at        BIGINT     NOT NULL,
    verdicts  INTEGER[]  NOT NULL,
    signals   INTEGER[]  NOT NULL,
    due       BOOLEAN[]  NOT NULL,
    more      TEXT,      -- JSON: results of operations, and the affected runs
    taken     BIGINT[],  -- claimed by an advance: runs, then units, then epochs
    PRIMARY KEY (store, sequence)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

-- Limits, and permits of attempts, units and runs (docs/architecture.md, "Flow control").

CREATE TABLE {schema}.holdfast_limit (
    name         TEXT     COLLATE "C" NOT NULL PRIMARY KEY,
    concurrency  BIGINT,
    rate_count   BIGINT,
    rate_ms      BIGINT,
    burst        BIGINT,
    fair         BOOLEAN  NOT NULL,
    weights      TEXT     NOT NULL,  -- a JSON object
    declared     TEXT                -- the values in the code, as JSON; NULL: created at run time
);

CREATE TABLE {schema}.holdfast_limit_use (
    name      TEXT     COLLATE "C" NOT NULL,
    key       TEXT     COLLATE "C" NOT NULL,
    used      BIGINT   NOT NULL DEFAULT 0,  -- number of permits that are granted or held
    tat       BIGINT   NOT NULL DEFAULT 0,  -- GCRA: the theoretical arrival time, in microseconds
    pass      DOUBLE PRECISION NOT NULL DEFAULT 0,  -- of a fair limit: the pass of this key (stride scheduling)
    virtual   DOUBLE PRECISION NOT NULL DEFAULT 0,  -- the virtual time: the highest pass that was granted
    ready_at  BIGINT,                       -- groups wait for the rate, which has room then
    freed     BOOLEAN  NOT NULL DEFAULT false,  -- there may be room for waiting groups
    PRIMARY KEY (name, key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX holdfast_limit_freed ON {schema}.holdfast_limit_use (name, key) WHERE freed;
CREATE INDEX holdfast_limit_ready ON {schema}.holdfast_limit_use (ready_at) WHERE ready_at IS NOT NULL;

-- The keys that have runs in bucket 3, or had: a claim takes from the key with the lowest pass (stride scheduling).
CREATE TABLE {schema}.holdfast_fair_key (
    queue     TEXT COLLATE "C" NOT NULL,
    workflow  TEXT COLLATE "C" NOT NULL,
    key       TEXT COLLATE "C" NOT NULL,
    pass      DOUBLE PRECISION NOT NULL,
    stride    DOUBLE PRECISION NOT NULL,  -- the inverse of the weight of the key
    PRIMARY KEY (queue, workflow, key)
);

CREATE INDEX holdfast_fair_key_pass ON {schema}.holdfast_fair_key (queue, workflow, pass);

-- Permits with the same limits and keys. A group with waiting permits waits at one limit, which has no room.
CREATE TABLE {schema}.holdfast_permit_group (
    id             BIGINT   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    names          TEXT[]   NOT NULL,
    keys           TEXT[]   NOT NULL,
    needs_tokens   BOOLEAN  NOT NULL,            -- false: permits of runs that have taken the tokens of their rates
    fair           INTEGER,                     -- the position of the first fair limit
    waiting        BIGINT   NOT NULL DEFAULT 0,  -- number of waiting permits
    name           TEXT     COLLATE "C",        -- the blocking limit
    key            TEXT     COLLATE "C",
    pass           DOUBLE PRECISION NOT NULL DEFAULT 0,  -- of the fair key, or of the first waiting permit
    head_priority  BIGINT,                      -- of the first waiting permit
    head           BIGINT,                      -- its id
    UNIQUE (names, keys, needs_tokens)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX holdfast_permit_group_next
    ON {schema}.holdfast_permit_group (name, key, needs_tokens, pass, head_priority, head) WHERE waiting > 0;
CREATE INDEX holdfast_permit_group_fair
    ON {schema}.holdfast_permit_group ((names[fair]), (keys[fair])) WHERE waiting > 0;

CREATE TABLE {schema}.holdfast_permit (
    id         BIGINT   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- order of the requests
    run        BIGINT   NOT NULL,
    unit       BIGINT   NOT NULL,
    step       BYTEA    NOT NULL,  -- empty: the task as a whole
    attempt    BIGINT   NOT NULL,
    grp        BIGINT   NOT NULL,
    state      INTEGER  NOT NULL,  -- 0: waiting, 1: granted, 2: held
    priority   BIGINT   NOT NULL,
    tag        DOUBLE PRECISION NOT NULL,  -- virtual time of the request
    until_end  BOOLEAN  NOT NULL,
    owner      TEXT     COLLATE "C",  -- of the task; NULL: parked
    epoch      BIGINT   NOT NULL,  -- of the task, when the permit was requested or parked
    parked     BIGINT,             -- the epoch under which it was parked
    woken      BOOLEAN  NOT NULL DEFAULT false,  -- granted and without an owner: the task was made due
    requested_at  BIGINT  NOT NULL,  -- the time of the request; a repeated request does not change it
    UNIQUE (run, unit, step, attempt)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX holdfast_permit_waiting ON {schema}.holdfast_permit (grp, priority, id) WHERE state = 0;
CREATE INDEX holdfast_permit_granted ON {schema}.holdfast_permit (owner) WHERE state = 1;

-- A permit belongs to its task. The triggers of tasks and runs are executed at the end of the transaction, so that the
-- lock of all permits is the last one that a transaction takes. functions/permits.sql has their functions.
CREATE FUNCTION {schema}.holdfast_task_released() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE FUNCTION {schema}.holdfast_task_deleted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE FUNCTION {schema}.holdfast_run_paused() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE FUNCTION {schema}.holdfast_permits_deleted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';

CREATE CONSTRAINT TRIGGER holdfast_task_released AFTER UPDATE OF owner ON {schema}.holdfast_task
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.permits AND OLD.owner IS NOT NULL AND (NEW.owner IS DISTINCT FROM OLD.owner OR NEW.epoch <> OLD.epoch))
    EXECUTE FUNCTION {schema}.holdfast_task_released();
CREATE CONSTRAINT TRIGGER holdfast_task_deleted AFTER DELETE ON {schema}.holdfast_task
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (OLD.permits)
    EXECUTE FUNCTION {schema}.holdfast_task_deleted();
CREATE CONSTRAINT TRIGGER holdfast_run_paused AFTER UPDATE OF status ON {schema}.holdfast_run
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.status = 'paused' AND OLD.status <> 'paused')
    EXECUTE FUNCTION {schema}.holdfast_run_paused();
CREATE TRIGGER holdfast_permits_deleted AFTER DELETE ON {schema}.holdfast_permit REFERENCING OLD TABLE AS deleted
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.holdfast_permits_deleted();

-- The end of a singleton releases the next one (functions/start_policies.sql). At the end of the transaction, because the
-- run may have a successor.
CREATE FUNCTION {schema}.holdfast_single_ended() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE CONSTRAINT TRIGGER holdfast_single_ended AFTER DELETE ON {schema}.holdfast_task
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (OLD.single IS NOT NULL AND OLD.held_at IS NULL)
    EXECUTE FUNCTION {schema}.holdfast_single_ended();

-- Queues that the code declares, or that were paused. A queue without a row is not paused.
CREATE TABLE {schema}.holdfast_queue (
    name      TEXT     COLLATE "C" NOT NULL PRIMARY KEY,
    paused    BOOLEAN  NOT NULL,
    declared  BOOLEAN            -- the value of paused in the code; NULL: not declared
);

-- Counts of runs that ended up to the watermark, so that statistics need not read finished runs. minute -1: the
-- watermark itself, as a time in `count`; 0: all runs; otherwise the runs that ended, and the instances that were started,
-- in this minute, for a day, then in this hour, for a week.
-- minute -2: the stored runs that were retried, on either side of the watermark; statistics subtract them.
CREATE TABLE {schema}.holdfast_tally (
    minute    BIGINT  NOT NULL,
    workflow  TEXT    COLLATE "C" NOT NULL,
    status    TEXT    COLLATE "C" NOT NULL,
    count     BIGINT  NOT NULL,
    PRIMARY KEY (minute, workflow, status)
);

-- A run joined with its task: the columns of RunRecord in their order, then columns that only the store uses.
CREATE VIEW {schema}.holdfast_record AS
SELECT r.id AS run, r.workflow, r.instance_id, r.number, r.kind, r.status, r.params, r.output, r.error, r.queue,
       r.priority, r.created_at, r.updated_at, r.started_at, r.completed_at, r.instance, r.seed, r.note, r.parent,
       r.attempt, r.options, r.memo, r.search, r.current, r.version, r.pinned, r.origin, t.run_at, t.owner, t.losses, t.signal,
       t.expires_at, t.expiry, t.topics, t.epoch, t.bound, coalesce(r.line, r.id) AS line
  FROM {schema}.holdfast_run AS r
  LEFT JOIN {schema}.holdfast_task AS t ON t.run = r.id AND t.unit = 0;

-- A run to create (NewRun). instance and number are set if the instance exists; NULL: the first run of the instance.
CREATE TYPE {schema}.holdfast_new_run AS (
    ord BIGINT, id BIGINT, instance BIGINT, number BIGINT, token BIGINT, workflow TEXT, instance_id TEXT, kind TEXT,
    params BYTEA, queue TEXT, priority BIGINT, delay_ms BIGINT, seed BIGINT, owner TEXT, lease_ms BIGINT,
    on_conflict TEXT, on_reuse TEXT, options BYTEA, memo BYTEA, search BYTEA, reuse_after_ms BIGINT,
    expires_ms BIGINT, expiry TEXT,
    parent TEXT, parent_run BIGINT, parent_close TEXT, watch INTEGER, sender BYTEA,
    fair_limit TEXT, fair_key TEXT, version TEXT, pinned BOOLEAN,
    start_event_type TEXT[], start_event_payload BYTEA[], term_key BYTEA[], term_text BYTEA[], term_number NUMERIC[], units BIGINT
);

-- PLAN facts and units of runs to create. f_run_ord and u_run_ord name the run (holdfast_new_run.ord) of each row;
-- u_taken is true for units that are created claimed.
CREATE TYPE {schema}.holdfast_plans_and_units AS (
    f_run_ord INTEGER[], f_state INTEGER[], f_key BYTEA[], f_n BIGINT[], f_kind TEXT[], f_at BIGINT[],
    f_started_at BIGINT[], f_seq BIGINT[], f_ok BOOLEAN[], f_value BYTEA[], f_name BYTEA[], f_attempts BIGINT[],
    f_max_attempts BIGINT[], f_timeout_ms BIGINT[], f_wake_at BIGINT[], f_event_type TEXT[], f_event BIGINT[],
    u_run_ord INTEGER[], u_unit BIGINT[], u_key BYTEA[], u_missing BIGINT[], u_taken BOOLEAN[]
);

-- An operation of a run on another run (RecordedOperation). The attributes in use depend on the kind.
CREATE TYPE {schema}.holdfast_operation AS (
    kind TEXT, workflow TEXT, instance_id TEXT, type TEXT, payload BYTEA, sender BYTEA, dedup BYTEA, ask BYTEA,
    token BIGINT, number BIGINT, note BYTEA, ok BOOLEAN, trace TEXT
);

-- Other runs that a call ended or woke (AffectedRuns); work: a task became due.
CREATE TYPE {schema}.holdfast_affected AS (ended BIGINT[], woken BIGINT[], work BOOLEAN);

-- A claimed task (Claim); r is the record of its run.
CREATE TYPE {schema}.holdfast_claimed AS (
    now BIGINT, next_due BIGINT, overdue BOOLEAN, unit BIGINT, epoch BIGINT, kind INTEGER, lost BOOLEAN,
    mailbox_n BIGINT[], mailbox_type TEXT[], mailbox_payload BYTEA[], mailbox_at BIGINT[], mailbox_sender BYTEA[],
    mailbox_ask BYTEA[], mailbox_trace TEXT[], mailbox_last BIGINT, r {schema}.holdfast_record
);

-- Tasks claimed among those that became due; due: more became due than were claimed.
CREATE TYPE {schema}.holdfast_taken AS (runs BIGINT[], units BIGINT[], epochs BIGINT[], due BOOLEAN);

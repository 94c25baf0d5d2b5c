-- {schema} is the store's schema, {channel} the channel of its notifications.
-- BYTEA columns that hold text have the surrogatepass UTF-8 of it: TEXT takes neither NUL nor lone surrogates.
-- Names are compared byte by byte (COLLATE "C"), as everywhere else in the engine, and faster than by a language.

CREATE SEQUENCE {schema}.holdfast_run_id;  -- never used twice, so that a fence never meets a stranger

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
    made_by       BIGINT,  -- the call that made it: asked when its answer got lost
    parent        TEXT     COLLATE "C",
    parent_run    BIGINT,
    parent_close  TEXT,
    attempt       BIGINT   NOT NULL DEFAULT 1,
    options       BYTEA,
    memo          BYTEA,
    search        BYTEA,
    line          BIGINT,  -- the first of those of which each asked for the next (holdfast_succeed); NULL: itself
    UNIQUE (workflow, instance_id, number)
) WITH (fillfactor = 85);

-- Also for what has any status: an index without it would be written with each change of a run, for the sake of lists.
CREATE INDEX holdfast_run_status ON {schema}.holdfast_run (workflow, status, instance) WHERE current;
CREATE INDEX holdfast_run_child ON {schema}.holdfast_run (parent_run, instance)
    WHERE parent_run IS NOT NULL AND current;
CREATE INDEX holdfast_run_living_child ON {schema}.holdfast_run (parent_run)
    WHERE parent_run IS NOT NULL AND completed_at IS NULL;

-- The hot table: small, every row changed again and again. Room in its pages, and the vacuum comes early.
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
    lease_until  BIGINT,   -- as of the claim; a heartbeat moves only the worker's own (holdfast_worker)
    lease_ms     BIGINT,   -- a lease of its own, counted from the worker's last heartbeat; NULL: the worker's lease
    epoch        BIGINT   NOT NULL,
    losses       INTEGER  NOT NULL,
    lost         BOOLEAN  NOT NULL,
    signal       INTEGER  NOT NULL,
    topics       TEXT     NOT NULL,
    claimed_by   BIGINT,   -- the call that claimed it: asked when its answer got lost
    expires_at   BIGINT,
    expiry       TEXT,
    bound        BOOLEAN  NOT NULL DEFAULT false,  -- it watches, is watched or has children, or once did: its end may
                                                   -- concern others. Set by whoever binds it, with the task locked
    missing      BIGINT,   -- how many units have to be done before it; NULL: the run has none but 0
    key          BYTEA,    -- of its START facts; unit 0 has none
    PRIMARY KEY (run, unit)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,
        autovacuum_analyze_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX holdfast_task_due ON {schema}.holdfast_task (queue, workflow, bucket, priority, run_at, run, unit)
    WHERE owner IS NULL AND run_at IS NOT NULL;
-- Of one run: which come first, and when the next one does.
CREATE INDEX holdfast_task_unit ON {schema}.holdfast_task (run, unit)
    WHERE owner IS NULL AND run_at IS NOT NULL AND unit > 0;
CREATE INDEX holdfast_task_unit_due ON {schema}.holdfast_task (run, run_at)
    WHERE owner IS NULL AND run_at IS NOT NULL AND unit > 0;
CREATE INDEX holdfast_task_lease ON {schema}.holdfast_task (owner, lease_until) WHERE owner IS NOT NULL;
-- Few: tasks that are judged by a lease of their own, also while their worker's is good.
CREATE INDEX holdfast_task_own_lease ON {schema}.holdfast_task (owner, lease_until) WHERE lease_ms IS NOT NULL;
CREATE INDEX holdfast_task_signal ON {schema}.holdfast_task (owner) WHERE signal <> 0;
CREATE INDEX holdfast_task_expiry ON {schema}.holdfast_task (expires_at) WHERE expires_at IS NOT NULL;

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
    written_by    BIGINT,  -- the call that wrote it, if that left no receipt: asked when its answer got lost
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
    dedup         BYTEA,   -- the sender's key, or one that no text has, made for the call; the engine's mail has none
    sent_by       BIGINT,  -- the call that sent it: asked when its answer got lost
    line          BIGINT,  -- of the run it was sent to, if it has a dedup: the whole line knows it
    reply_ok      BOOLEAN, -- NULL: not answered
    reply         BYTEA,
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

CREATE TABLE {schema}.holdfast_watch (
    target   BIGINT   NOT NULL,
    watcher  BIGINT   NOT NULL,
    kind     INTEGER  NOT NULL,  -- flags
    PRIMARY KEY (target, watcher)
);

CREATE INDEX holdfast_watch_watcher ON {schema}.holdfast_watch (watcher, target);

-- What runs tell the world: on its way, delivered, or given up.
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
    PRIMARY KEY (run, n)
);

CREATE INDEX holdfast_outbox_left ON {schema}.holdfast_outbox (run, n) WHERE delivered_at IS NULL AND parked_at IS NULL;
CREATE INDEX holdfast_outbox_parked ON {schema}.holdfast_outbox (run, n) WHERE parked_at IS NOT NULL;

-- A row for each run that has something left to deliver: the first of it. So what waits behind that costs nothing.
-- Whoever adds to a run's outbox or takes from it locks its row here: one that is seen stays until it was seen to.
CREATE TABLE {schema}.holdfast_outlet (
    run         BIGINT  NOT NULL PRIMARY KEY,
    n           BIGINT  NOT NULL,
    run_at      BIGINT  NOT NULL,  -- when it can be taken; while it is held, the end of the lease
    owner       TEXT    COLLATE "C",
    claimed_by  BIGINT             -- the call that claimed it: asked when its answer got lost
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

CREATE INDEX holdfast_outlet_due ON {schema}.holdfast_outlet (run_at, run);

-- What the current run of an instance can be found by: a text or a number. An index takes only the beginning of a text
-- (head, below): a long one would not fit into its pages.
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

-- One row for each who sends heartbeats; one that also enrolled has a host. Changed in place, nothing indexed but the
-- key, so a heartbeat is one HOT update however many tasks are held.
CREATE TABLE {schema}.holdfast_worker (
    id           TEXT    COLLATE "C" NOT NULL PRIMARY KEY,
    host         TEXT,
    pid          BIGINT,
    queues       TEXT[],
    concurrency  BIGINT,
    started_at   BIGINT  NOT NULL,
    seen_at      BIGINT  NOT NULL,
    lease_until  BIGINT  NOT NULL
) WITH (fillfactor = 50);

-- The last batch of commits of each line (a store writes several at a time) and what was answered to it. A call whose
-- answer got lost is made again with the same number, and gets the same answer; an older number does nothing.
CREATE TABLE {schema}.holdfast_receipt (
    store     TEXT       COLLATE "C" NOT NULL,
    line      INTEGER    NOT NULL,
    n         BIGINT     NOT NULL,
    at        BIGINT     NOT NULL,
    verdicts  INTEGER[]  NOT NULL,
    signals   INTEGER[]  NOT NULL,
    due       BOOLEAN[]  NOT NULL,
    more      TEXT,      -- JSON: what came of acts, and which other runs were changed
    taken     BIGINT[],  -- by an advance: runs, then units, then epochs
    PRIMARY KEY (store, line)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

-- A run with what its task says: the columns of RunRecord in their order, then what the store itself looks at.
CREATE VIEW {schema}.holdfast_record AS
SELECT r.id AS run, r.workflow, r.instance_id, r.number, r.kind, r.status, r.params, r.output, r.error, r.queue,
       r.priority, r.created_at, r.updated_at, r.started_at, r.completed_at, r.instance, r.seed, r.note, r.parent,
       r.attempt, r.options, r.memo, r.search, r.current, t.run_at, t.owner, t.losses, t.signal, t.expires_at, t.expiry,
       t.topics, t.epoch, t.bound, coalesce(r.line, r.id) AS line
  FROM {schema}.holdfast_run AS r
  LEFT JOIN {schema}.holdfast_task AS t ON t.run = r.id AND t.unit = 0;

-- A run to make (NewRun). instance and number are those of a run that comes after another; NULL: the first.
CREATE TYPE {schema}.holdfast_new AS (
    ord BIGINT, id BIGINT, instance BIGINT, number BIGINT, token BIGINT, workflow TEXT, instance_id TEXT, kind TEXT,
    params BYTEA, queue TEXT, priority BIGINT, delay_ms BIGINT, seed BIGINT, owner TEXT, lease_ms BIGINT,
    on_conflict TEXT, on_reuse TEXT, options BYTEA, memo BYTEA, search BYTEA, expires_ms BIGINT, expiry TEXT,
    parent TEXT, parent_run BIGINT, parent_close TEXT, watch INTEGER, sender BYTEA, letter_type TEXT[],
    letter_payload BYTEA[], term_key BYTEA[], term_text BYTEA[], term_number NUMERIC[], units BIGINT
);

-- What runs to make consist of: facts of their plans, and their units with whether each is born claimed. f_of and u_of
-- say to which run (holdfast_new.ord) each belongs.
CREATE TYPE {schema}.holdfast_parts AS (
    f_of INTEGER[], f_state INTEGER[], f_key BYTEA[], f_n BIGINT[], f_kind TEXT[], f_at BIGINT[],
    f_started_at BIGINT[], f_seq BIGINT[], f_ok BOOLEAN[], f_value BYTEA[], f_name BYTEA[], f_attempts BIGINT[],
    f_max_attempts BIGINT[], f_timeout_ms BIGINT[], f_wake_at BIGINT[], f_event_type TEXT[], f_event BIGINT[],
    u_of INTEGER[], u_unit BIGINT[], u_key BYTEA[], u_missing BIGINT[], u_taken BOOLEAN[]
);

-- Something that a run does to others (Act). What it needs of the rest depends on what it is.
CREATE TYPE {schema}.holdfast_deed AS (
    what TEXT, workflow TEXT, instance_id TEXT, type TEXT, payload BYTEA, sender BYTEA, dedup BYTEA, ask BYTEA,
    token BIGINT, number BIGINT, note BYTEA, ok BOOLEAN
);

-- Which other runs a call has changed (Touched).
CREATE TYPE {schema}.holdfast_touched AS (ended BIGINT[], woken BIGINT[], work BOOLEAN);

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
    UNIQUE (workflow, instance_id, number)
) WITH (fillfactor = 85);

CREATE INDEX holdfast_run_list ON {schema}.holdfast_run (workflow, instance) WHERE current;
CREATE INDEX holdfast_run_status ON {schema}.holdfast_run (workflow, status, instance) WHERE current;
CREATE INDEX holdfast_run_child ON {schema}.holdfast_run (parent_run, instance) WHERE parent_run IS NOT NULL AND current;
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
    PRIMARY KEY (run, unit)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,
        autovacuum_analyze_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX holdfast_task_due ON {schema}.holdfast_task (queue, workflow, bucket, priority, run_at, run)
    WHERE owner IS NULL AND run_at IS NOT NULL;
CREATE INDEX holdfast_task_lease ON {schema}.holdfast_task (owner, lease_until) WHERE owner IS NOT NULL;
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
    reply_ok      BOOLEAN, -- NULL: not answered
    reply         BYTEA,
    PRIMARY KEY (run, n)
);

CREATE INDEX holdfast_event_undelivered ON {schema}.holdfast_event (run, n) WHERE delivered_at IS NULL;
CREATE INDEX holdfast_event_type ON {schema}.holdfast_event (run, type, n) WHERE delivered_at IS NULL;
CREATE UNIQUE INDEX holdfast_event_dedup ON {schema}.holdfast_event (run, dedup) WHERE dedup IS NOT NULL;

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
    PRIMARY KEY (store, line)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

-- A run with what its task says: the columns of RunRecord in their order, then what the store itself looks at.
CREATE VIEW {schema}.holdfast_record AS
SELECT r.id AS run, r.workflow, r.instance_id, r.number, r.kind, r.status, r.params, r.output, r.error, r.queue,
       r.priority, r.created_at, r.updated_at, r.started_at, r.completed_at, r.instance, r.seed, r.note, r.parent,
       r.attempt, r.options, r.memo, r.search, r.current, t.run_at, t.owner, t.losses, t.signal, t.expires_at, t.expiry,
       t.topics, t.epoch, t.bound
  FROM {schema}.holdfast_run AS r
  LEFT JOIN {schema}.holdfast_task AS t ON t.run = r.id AND t.unit = 0;

-- A run to make (NewRun). instance and number are those of a run that comes after another; NULL: the first.
CREATE TYPE {schema}.holdfast_new AS (
    ord BIGINT, id BIGINT, instance BIGINT, number BIGINT, token BIGINT, workflow TEXT, instance_id TEXT, kind TEXT,
    params BYTEA, queue TEXT, priority BIGINT, delay_ms BIGINT, seed BIGINT, owner TEXT, lease_ms BIGINT,
    on_conflict TEXT, on_reuse TEXT, options BYTEA, memo BYTEA, search BYTEA, expires_ms BIGINT, expiry TEXT,
    parent TEXT, parent_run BIGINT, parent_close TEXT, watch INTEGER, sender BYTEA, letter_type TEXT[],
    letter_payload BYTEA[], term_key BYTEA[], term_text BYTEA[], term_number NUMERIC[]
);

-- Something that a run does to others (Act). What it needs of the rest depends on what it is.
CREATE TYPE {schema}.holdfast_deed AS (
    what TEXT, workflow TEXT, instance_id TEXT, type TEXT, payload BYTEA, sender BYTEA, dedup BYTEA, ask BYTEA,
    token BIGINT, number BIGINT, note BYTEA, ok BOOLEAN
);

-- Which other runs a call has changed (Touched).
CREATE TYPE {schema}.holdfast_touched AS (ended BIGINT[], woken BIGINT[], work BOOLEAN);

-- Why functions and not statements: each is one round trip and one transaction, and each statement inside sees what
-- was committed before *it* began. That is what lets a commit that waited for a lock see the event whose sender held
-- it; the parts of one big statement would all look at the past. Their settings keep the planner off plans that are
-- right only while a table is small: everything is found by an index, row by row.
--
-- The order of locks, everywhere: tasks by their run, then runs. Whoever changes a run that has not ended locks its task.

-- ---------------------------------------------------------------------------------------------------- basics

-- The time of a call (p_now where a test has a clock), in a transaction that is durable once it has ended.
-- One expression, so that it costs no call where it is used.
CREATE FUNCTION {schema}.holdfast_begin(p_now BIGINT) RETURNS BIGINT LANGUAGE sql AS $$
    SELECT CASE WHEN current_setting('synchronous_commit') = 'off'
                 AND set_config('synchronous_commit', 'on', true) IS NULL THEN NULL
           ELSE coalesce(p_now, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) END
$$;

CREATE FUNCTION {schema}.holdfast_current(p_workflow TEXT, p_instance_id TEXT) RETURNS BIGINT LANGUAGE sql STABLE AS $$
    SELECT id FROM {schema}.holdfast_run
     WHERE workflow = p_workflow AND instance_id = p_instance_id ORDER BY number DESC LIMIT 1
$$;

-- The current run, locked: it stays the current one until the transaction ends. The lock of a living run is its task, and
-- whoever has that knows that nothing came after the run; the lock of one that has ended is its own row.
CREATE FUNCTION {schema}.holdfast_lock(p_workflow TEXT, p_instance_id TEXT) RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    v_run BIGINT := {schema}.holdfast_current(p_workflow, p_instance_id);
    v_locked BIGINT;
BEGIN
    WHILE v_run IS DISTINCT FROM v_locked LOOP
        v_locked := v_run;
        PERFORM FROM {schema}.holdfast_task WHERE run = v_run AND unit = 0 FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        PERFORM FROM {schema}.holdfast_run WHERE id = v_run FOR NO KEY UPDATE;
        v_run := {schema}.holdfast_current(p_workflow, p_instance_id);
    END LOOP;
    RETURN v_run;
END $$;

-- Those that live. OFFSET 0 here and elsewhere: looked up one by one, and not joined in some other order.
CREATE FUNCTION {schema}.holdfast_children(p_parent BIGINT) RETURNS TABLE (id BIGINT, parent_close TEXT)
LANGUAGE sql STABLE AS $$
    SELECT id, parent_close FROM {schema}.holdfast_run
     WHERE parent_run = p_parent AND parent_run IS NOT NULL AND completed_at IS NULL OFFSET 0
$$;

-- Locks the tasks of p_also, of p_ending, and of all whom the end of those concerns: who watches them, and their living
-- children, down to the last. Again until nobody new is among them: one that had to be waited for may have a successor.
CREATE FUNCTION {schema}.holdfast_lock_family(p_ending BIGINT[], p_also BIGINT[]) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_all BIGINT[];
    v_locked BIGINT[];
BEGIN
    LOOP
        WITH RECURSIVE ending (run) AS (
            SELECT unnest(p_ending)
            UNION
            SELECT c.id FROM ending AS e CROSS JOIN LATERAL {schema}.holdfast_children(e.run) AS c
             WHERE c.parent_close <> 'abandon'
        )
        SELECT array_agg(run ORDER BY run) INTO v_all
          FROM (SELECT run FROM ending
                UNION SELECT w.watcher FROM ending AS e
                       CROSS JOIN LATERAL (SELECT watcher FROM {schema}.holdfast_watch WHERE target = e.run OFFSET 0) AS w
                UNION SELECT unnest(p_also)) AS x (run);
        EXIT WHEN v_all IS NOT DISTINCT FROM v_locked;
        PERFORM 1 FROM {schema}.holdfast_task WHERE run = ANY (v_all) ORDER BY run, unit FOR NO KEY UPDATE;
        v_locked := v_all;
    END LOOP;
END $$;

-- As holdfast_lock, for a run that is about to end.
CREATE FUNCTION {schema}.holdfast_lock_to_end(p_workflow TEXT, p_instance_id TEXT) RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    v_run BIGINT := {schema}.holdfast_current(p_workflow, p_instance_id);
BEGIN
    IF EXISTS (SELECT FROM {schema}.holdfast_task WHERE run = v_run AND bound) THEN
        PERFORM {schema}.holdfast_lock_family(ARRAY[v_run], NULL);
    END IF;
    RETURN {schema}.holdfast_lock(p_workflow, p_instance_id);
END $$;

CREATE FUNCTION {schema}.holdfast_and(p_one {schema}.holdfast_touched, p_other {schema}.holdfast_touched)
RETURNS {schema}.holdfast_touched LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW((p_one).ended || (p_other).ended, (p_one).woken || (p_other).woken,
               coalesce((p_one).work, false) OR coalesce((p_other).work, false))::{schema}.holdfast_touched
$$;

-- Free text as a JSON string of nothing but ASCII; TEXT could not hold all of it. NULL is null.
CREATE FUNCTION {schema}.holdfast_json(p_text BYTEA) RETURNS BYTEA LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_json TEXT := '"';
    v_at INTEGER := 0;
    v_byte INTEGER;
    v_more INTEGER;
    v_code INTEGER;
BEGIN
    IF p_text IS NULL THEN
        RETURN 'null'::bytea;
    ELSIF encode(p_text, 'escape') ~ '^[ !#-[\]-~]*$' AND position('\x5c'::bytea IN p_text) = 0 THEN
        RETURN '"'::bytea || p_text || '"'::bytea;
    END IF;
    WHILE v_at < length(p_text) LOOP
        v_byte := get_byte(p_text, v_at);
        v_more := CASE WHEN v_byte < 128 THEN 0 WHEN v_byte < 224 THEN 1 WHEN v_byte < 240 THEN 2 ELSE 3 END;
        v_code := CASE v_more WHEN 0 THEN v_byte WHEN 1 THEN v_byte & 31 WHEN 2 THEN v_byte & 15 ELSE v_byte & 7 END;
        FOR i IN 1..v_more LOOP
            v_code := (v_code << 6) | (get_byte(p_text, v_at + i) & 63);
        END LOOP;
        v_at := v_at + 1 + v_more;
        v_json := v_json || CASE
            WHEN v_code BETWEEN 32 AND 126 AND v_code NOT IN (34, 92) THEN chr(v_code)
            WHEN v_code < 65536 THEN '\u' || lpad(to_hex(v_code), 4, '0')
            ELSE '\u' || to_hex(55296 + ((v_code - 65536) >> 10)) || '\u' || to_hex(56320 + ((v_code - 65536) & 1023))
        END;
    END LOOP;
    RETURN convert_to(v_json || '"', 'UTF8');
END $$;

CREATE FUNCTION {schema}.holdfast_pid(p_workflow TEXT, p_instance_id TEXT) RETURNS BYTEA LANGUAGE sql STABLE AS $$
    SELECT convert_to(p_workflow || '/' || p_instance_id, 'UTF8')
$$;

-- The current run of a pid; NULL if there is none, or if it is no pid at all.
CREATE FUNCTION {schema}.holdfast_run_of(p_pid BYTEA) RETURNS BIGINT LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_pid TEXT := convert_from(p_pid, 'UTF8');
BEGIN
    RETURN {schema}.holdfast_current(split_part(v_pid, '/', 1), substr(v_pid, position('/' IN v_pid) + 1));
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
    RETURN NULL;
END $$;

-- What somebody who watches a run is told of its end, made of the very bytes that are stored.
CREATE FUNCTION {schema}.holdfast_exit(p_watch INTEGER, p_run {schema}.holdfast_run) RETURNS BYTEA LANGUAGE sql STABLE AS $$
    SELECT convert_to('{"watch":' || p_watch || ',"status":"' || (p_run).status || '","output":', 'UTF8')
        || coalesce((p_run).output, 'null'::bytea) || ',"error":'::bytea || coalesce((p_run).error, 'null'::bytea)
        || ',"note":'::bytea || {schema}.holdfast_json((p_run).note) || '}'::bytea
$$;

-- ---------------------------------------------------------------------------------------------------- mail

-- Whether an event of this type wakes a run that waits for these topics. The engine's own always does.
CREATE FUNCTION {schema}.holdfast_wanted(p_type TEXT, p_topics TEXT) RETURNS BOOLEAN LANGUAGE sql IMMUTABLE AS $$
    SELECT p_type LIKE '@%' OR position(' * ' IN p_topics) > 0 OR position(' ' || p_type || ' ' IN p_topics) > 0
$$;

-- Puts an event into the mailbox of a run that lives and whose task is locked; p_to is how it was then. What came of it:
-- 0 it was there before, 1 it is kept and nobody waits for it, 2 who holds the run is told, 3 the run is due.
CREATE FUNCTION {schema}.holdfast_put(
    p_now BIGINT, p_to {schema}.holdfast_record, p_type TEXT, p_payload BYTEA, p_sender BYTEA, p_ask BYTEA, p_dedup BYTEA,
    p_token BIGINT
) RETURNS INTEGER LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.holdfast_event (run, n, type, payload, created_at, sender, ask, dedup, sent_by)
    VALUES (p_to.run, 1 + coalesce((SELECT max(n) FROM {schema}.holdfast_event WHERE run = p_to.run), 0),
            p_type, p_payload, p_now, p_sender, p_ask, p_dedup, p_token)
    ON CONFLICT (run, dedup) WHERE dedup IS NOT NULL DO NOTHING;
    IF NOT FOUND THEN
        RETURN 0;
    ELSIF p_to.owner IS NOT NULL THEN
        UPDATE {schema}.holdfast_task SET signal = signal | 1 WHERE run = p_to.run AND unit = 0;
        RETURN 2;
    ELSIF p_to.status = 'paused' OR NOT {schema}.holdfast_wanted(p_type, p_to.topics) THEN
        RETURN 1;
    ELSIF p_to.run_at IS NULL OR p_to.run_at > p_now THEN
        UPDATE {schema}.holdfast_task SET run_at = p_now, kind = 0, bucket = 0 WHERE run = p_to.run AND unit = 0;
    END IF;
    RETURN 3;
END $$;

-- The engine's own mail: to those of the runs that live, whose tasks are locked. Answers who was woken, and is due by that.
CREATE FUNCTION {schema}.holdfast_post(
    p_now BIGINT, p_run BIGINT[], p_type TEXT, p_payload BYTEA[], p_sender BYTEA[]
) RETURNS TABLE (run BIGINT, due BOOLEAN) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO {schema}.holdfast_event (run, n, type, payload, created_at, sender)
    SELECT a.run, coalesce((SELECT max(n) FROM {schema}.holdfast_event WHERE run = a.run), 0)
               + row_number() OVER (PARTITION BY a.run ORDER BY a.ord), p_type, a.payload, p_now, a.sender
      FROM unnest(p_run, p_payload, p_sender) WITH ORDINALITY AS a (run, payload, sender, ord)
     WHERE (SELECT true FROM {schema}.holdfast_task AS t WHERE t.run = a.run AND t.unit = 0);
    RETURN QUERY
        UPDATE {schema}.holdfast_task AS t
           SET signal = CASE WHEN t.owner IS NULL THEN t.signal ELSE t.signal | 1 END,
               run_at = CASE WHEN t.owner IS NULL THEN least(t.run_at, p_now) ELSE t.run_at END,
               kind = CASE WHEN t.owner IS NULL AND t.run_at <= p_now IS NOT TRUE THEN 0 ELSE t.kind END,
               bucket = CASE WHEN t.owner IS NULL AND t.run_at <= p_now IS NOT TRUE THEN 0 ELSE t.bucket END
         WHERE t.run = ANY (p_run) AND t.unit = 0
           AND (t.owner IS NOT NULL OR (SELECT status FROM {schema}.holdfast_run WHERE id = t.run) <> 'paused')
        RETURNING t.run, t.owner IS NULL;
END $$;

-- The same to one, and what that has changed.
CREATE FUNCTION {schema}.holdfast_post_one(
    p_now BIGINT, p_run BIGINT, p_type TEXT, p_payload BYTEA, p_sender BYTEA
) RETURNS {schema}.holdfast_touched LANGUAGE sql AS $$
    SELECT ROW(NULL, array_agg(p.run), coalesce(bool_or(p.due), false))::{schema}.holdfast_touched
      FROM {schema}.holdfast_post(p_now, ARRAY[p_run], p_type, ARRAY[p_payload], ARRAY[p_sender]) AS p
$$;

-- Asks a run that lives, and whose task is locked, to cancel. p_deadline_ms: from now on; it expires then at the latest.
CREATE FUNCTION {schema}.holdfast_ask_to_cancel(
    p_now BIGINT, p_run BIGINT, p_payload BYTEA, p_deadline_ms BIGINT, p_sender BYTEA
) RETURNS {schema}.holdfast_touched LANGUAGE plpgsql AS $$
DECLARE
    v_touched {schema}.holdfast_touched := {schema}.holdfast_post_one(p_now, p_run, '@cancel', p_payload, p_sender);
BEGIN
    UPDATE {schema}.holdfast_task SET expires_at = p_now + p_deadline_ms, expiry = 'cancel'
     WHERE run = p_run AND unit = 0 AND p_deadline_ms IS NOT NULL AND expires_at <= p_now + p_deadline_ms IS NOT TRUE;
    -- Somebody has to end it then: claims are to ask for the next due time again.
    v_touched.work := coalesce(v_touched.work, false) OR p_deadline_ms IS NOT NULL;
    RETURN v_touched;
END $$;

-- Undelivered events of a run, the oldest first: one more than are handed out at once (500), if there are more.
CREATE FUNCTION {schema}.holdfast_mailbag(p_run BIGINT, p_after BIGINT)
RETURNS TABLE (mail_n BIGINT[], mail_type TEXT[], mail_payload BYTEA[], mail_at BIGINT[], mail_sender BYTEA[],
               mail_ask BYTEA[], mail_last BIGINT)
LANGUAGE sql STABLE AS $$
    SELECT array_agg(e.n), array_agg(e.type), array_agg(e.payload), array_agg(e.created_at), array_agg(e.sender),
           array_agg(e.ask), (SELECT max(n) FROM {schema}.holdfast_event WHERE run = p_run)
      FROM (SELECT * FROM {schema}.holdfast_event
             WHERE run = p_run AND n > p_after AND delivered_at IS NULL ORDER BY n LIMIT 501) AS e
$$;

-- p_dedup has a key for each: the sender's own, or one made for this call. p_owner and what goes with it: who takes the
-- run if the event wakes it (p_queues: their names, each between two line ends). p_again: an earlier try of this call
-- may have been done.
CREATE FUNCTION {schema}.holdfast_send(
    p_now BIGINT, p_by TEXT, p_workflow TEXT[], p_instance_id TEXT[], p_type TEXT[], p_payload BYTEA[],
    p_sender BYTEA[], p_dedup BYTEA[], p_token BIGINT[], p_ask BYTEA[], p_owner TEXT[], p_lease_ms BIGINT[], p_queues TEXT[],
    p_suspect INTEGER, p_again BOOLEAN
) RETURNS TABLE (ord BIGINT, accepted BOOLEAN, duplicate BOOLEAN, woken BOOLEAN, epoch BIGINT, kind INTEGER, lost BOOLEAN,
                 now BIGINT, mail_n BIGINT[], mail_type TEXT[], mail_payload BYTEA[], mail_at BIGINT[],
                 mail_sender BYTEA[], mail_ask BYTEA[], mail_last BIGINT, r {schema}.holdfast_record)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT;
    v_rec {schema}.holdfast_record;
    v_effect INTEGER;
    v_told BOOLEAN := false;
    v_task {schema}.holdfast_task;
    v_one RECORD;
BEGIN
    IF cardinality(p_workflow) > 1 THEN
        PERFORM 1 FROM {schema}.holdfast_task AS t
          WHERE t.run = ANY (ARRAY(SELECT {schema}.holdfast_current(a.workflow, a.instance_id)
                                     FROM unnest(p_workflow, p_instance_id) AS a (workflow, instance_id)))
          ORDER BY t.run, t.unit FOR NO KEY UPDATE;
    END IF;
    FOR v_one IN
        SELECT * FROM unnest(p_workflow, p_instance_id, p_type, p_payload, p_sender, p_dedup, p_token, p_ask, p_owner,
                             p_lease_ms, p_queues)
            WITH ORDINALITY AS a (workflow, instance_id, type, payload, sender, dedup, token, ask, owner, lease_ms,
                                  queues, ord)
    LOOP
        v_run := {schema}.holdfast_lock(v_one.workflow, v_one.instance_id);
        v_rec := NULL;
        v_task := NULL;
        IF v_run IS NOT NULL THEN
            SELECT * INTO v_rec FROM {schema}.holdfast_record WHERE run = v_run;
        END IF;
        IF v_rec.epoch IS NOT NULL THEN  -- it has a task, so it has not ended
            v_effect := {schema}.holdfast_put(v_now, v_rec, v_one.type, v_one.payload, v_one.sender, v_one.ask,
                                              v_one.dedup, v_one.token);
            IF v_effect = 0 AND EXISTS (SELECT FROM {schema}.holdfast_event
                                         WHERE run = v_run AND dedup = v_one.dedup AND sent_by = v_one.token) THEN
                v_effect := 2;  -- this very call has been here before
                SELECT * INTO v_task FROM {schema}.holdfast_task AS t
                 WHERE t.run = v_run AND t.unit = 0 AND (t.owner = v_one.owner) IS TRUE AND t.claimed_by = v_one.token;
            ELSIF v_effect = 3 THEN
                v_task := {schema}.holdfast_take_awoken(v_now, v_run, v_one.token, v_one.owner, v_one.lease_ms,
                                                        v_one.queues, p_suspect);
            END IF;
            v_told := v_told OR (v_effect > 1 AND v_task.run IS NULL);
            RETURN QUERY
                SELECT v_one.ord, true, v_effect = 0, v_effect > 1, v_task.epoch, v_task.kind, v_task.lost, v_now, m.*,
                       v_rec
                  FROM (SELECT) AS x LEFT JOIN LATERAL {schema}.holdfast_mailbag(v_task.run, 0) AS m
                       ON v_task.run IS NOT NULL;
        ELSE
            RETURN QUERY SELECT v_one.ord, p_again AND EXISTS (
                SELECT FROM {schema}.holdfast_run AS b
                  JOIN {schema}.holdfast_event AS e ON e.run = b.id AND e.dedup = v_one.dedup
                 WHERE b.workflow = v_one.workflow AND b.instance_id = v_one.instance_id AND e.sent_by = v_one.token
            ), false, false, NULL::bigint, NULL::int, NULL::boolean, v_now, NULL::bigint[], NULL::text[], NULL::bytea[],
            NULL::bigint[], NULL::bytea[], NULL::bytea[], NULL::bigint, v_rec;
        END IF;
    END LOOP;
    IF v_told THEN
        PERFORM pg_notify('{channel}', p_by);
    END IF;
END $$;

-- The same for one event to a run that lives, which is what most calls are. Half the time. NULL if there is more to it: no
-- such run, one that has ended, an event that was there before. t is the task as it was then.
CREATE FUNCTION {schema}.holdfast_send_one(
    p_now BIGINT, p_by TEXT, p_workflow TEXT, p_instance_id TEXT, p_type TEXT, p_payload BYTEA, p_sender BYTEA,
    p_dedup BYTEA, p_token BIGINT, p_ask BYTEA, p_owner TEXT, p_lease_ms BIGINT, p_queues TEXT, p_suspect INTEGER,
    p_quiet BOOLEAN, OUT woken BOOLEAN, OUT epoch BIGINT, OUT kind INTEGER, OUT lost BOOLEAN, OUT now BIGINT, OUT mail_n BIGINT[],
    OUT mail_type TEXT[], OUT mail_payload BYTEA[], OUT mail_at BIGINT[], OUT mail_sender BYTEA[], OUT mail_ask BYTEA[],
    OUT mail_last BIGINT, OUT r {schema}.holdfast_run, OUT t {schema}.holdfast_task
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    v_due BOOLEAN;
BEGIN
    now := {schema}.holdfast_begin(p_now);
    SELECT * INTO t FROM {schema}.holdfast_task AS x
     WHERE x.run = (SELECT id FROM {schema}.holdfast_run
                     WHERE workflow = p_workflow AND instance_id = p_instance_id ORDER BY number DESC LIMIT 1)
       AND x.unit = 0
       FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO {schema}.holdfast_event (run, n, type, payload, created_at, sender, ask, dedup, sent_by)
    VALUES (t.run, 1 + coalesce((SELECT max(n) FROM {schema}.holdfast_event WHERE run = t.run), 0), p_type, p_payload,
            now, p_sender, p_ask, p_dedup, p_token)
    ON CONFLICT (run, dedup) WHERE dedup IS NOT NULL DO NOTHING
    RETURNING n INTO mail_last;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT * INTO r FROM {schema}.holdfast_run WHERE id = t.run;
    woken := t.owner IS NOT NULL OR (r.status <> 'paused' AND {schema}.holdfast_wanted(p_type, t.topics));
    v_due := t.run_at <= now;
    IF t.owner IS NOT NULL THEN
        UPDATE {schema}.holdfast_task AS x SET signal = x.signal | 1 WHERE x.run = t.run AND x.unit = 0;
    ELSIF woken AND p_owner IS NOT NULL AND t.losses < p_suspect
          AND position(E'\n' || t.queue || E'\n' IN p_queues) > 0 THEN
        epoch := t.epoch + 1;
        kind := CASE WHEN v_due THEN t.kind ELSE 0 END;
        lost := t.lost;
        UPDATE {schema}.holdfast_task AS x
           SET owner = p_owner, lease_until = now + p_lease_ms, lost = false, epoch = holdfast_send_one.epoch,
               claimed_by = p_token, kind = holdfast_send_one.kind, run_at = CASE WHEN v_due THEN x.run_at ELSE now END,
               bucket = CASE WHEN v_due THEN x.bucket ELSE 0 END
         WHERE x.run = t.run AND x.unit = 0;
        IF r.status = 'waiting' THEN
            UPDATE {schema}.holdfast_run SET status = 'active', updated_at = now WHERE id = t.run;
        END IF;
        IF mail_last = 1 THEN  -- there is nothing else in its mailbox
            mail_n := ARRAY[mail_last];
            mail_type := ARRAY[p_type];
            mail_payload := ARRAY[p_payload];
            mail_at := ARRAY[now];
            mail_sender := ARRAY[p_sender];
            mail_ask := ARRAY[p_ask];
        ELSE
            SELECT * INTO mail_n, mail_type, mail_payload, mail_at, mail_sender, mail_ask, mail_last
              FROM {schema}.holdfast_mailbag(t.run, 0);
        END IF;
        RETURN;
    ELSIF woken AND v_due IS NOT TRUE THEN
        UPDATE {schema}.holdfast_task AS x SET run_at = now, kind = 0, bucket = 0 WHERE x.run = t.run AND x.unit = 0;
    END IF;
    IF woken AND NOT p_quiet THEN
        PERFORM pg_notify('{channel}', p_by);
    END IF;
END $$;

-- Gives a run that is due to who wanted it, unless it is a suspect or not of the wanted queues. Answers its task, as it
-- is then, but for lost: whether the holder before did not give it back.
CREATE FUNCTION {schema}.holdfast_take_awoken(
    p_now BIGINT, p_run BIGINT, p_token BIGINT, p_owner TEXT, p_lease_ms BIGINT, p_queues TEXT,
    p_suspect INTEGER
) RETURNS {schema}.holdfast_task LANGUAGE plpgsql AS $$
DECLARE
    v_task {schema}.holdfast_task;
BEGIN
    IF p_owner IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT * INTO v_task FROM {schema}.holdfast_task
     WHERE run = p_run AND unit = 0 AND losses < p_suspect AND position(E'\n' || queue || E'\n' IN p_queues) > 0;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    UPDATE {schema}.holdfast_task
       SET owner = p_owner, lease_until = p_now + p_lease_ms, lost = false, epoch = epoch + 1, claimed_by = p_token
     WHERE run = p_run AND unit = 0;
    UPDATE {schema}.holdfast_run SET status = 'active', updated_at = p_now WHERE id = p_run AND status = 'waiting';
    v_task.epoch := v_task.epoch + 1;
    RETURN v_task;
END $$;

-- ---------------------------------------------------------------------------------------------------- ends

-- What follows from the end of runs: whoever watches them is told, and their living children are treated as was agreed,
-- those that are terminated by this in the same way, down to the last. Their rows are terminal and their tasks gone.
-- Answers which others ended or were woken by that, and by the end of which of p_runs.
CREATE FUNCTION {schema}.holdfast_ended(p_now BIGINT, p_runs BIGINT[])
RETURNS TABLE (by BIGINT, ended BIGINT, woken BIGINT, due BOOLEAN) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_ended BIGINT[] := p_runs;
    v_by BIGINT[] := p_runs;
    v_to BIGINT[];
    v_to_by BIGINT[];
    v_payload BYTEA[];
    v_sender BYTEA[];
BEGIN
    PERFORM {schema}.holdfast_lock_family(p_runs, NULL);
    WHILE v_ended IS NOT NULL LOOP
        -- Their own watches first: what has ended is not to hear of its children's ends.
        DELETE FROM {schema}.holdfast_watch WHERE watcher = ANY (v_ended);
        WITH told AS (DELETE FROM {schema}.holdfast_watch WHERE target = ANY (v_ended) RETURNING target, watcher, kind)
        SELECT array_agg(w.watcher ORDER BY a.ord, w.watcher), array_agg(a.by ORDER BY a.ord, w.watcher),
               array_agg(x.payload ORDER BY a.ord, w.watcher), array_agg(x.pid ORDER BY a.ord, w.watcher)
          INTO v_to, v_to_by, v_payload, v_sender
          FROM told AS w
          JOIN unnest(v_ended, v_by) WITH ORDINALITY AS a (run, by, ord) ON a.run = w.target
         CROSS JOIN LATERAL (SELECT {schema}.holdfast_exit(w.kind, r) AS payload,
                                    {schema}.holdfast_pid(r.workflow, r.instance_id) AS pid
                               FROM {schema}.holdfast_run AS r WHERE r.id = w.target OFFSET 0) AS x;
        IF v_to IS NOT NULL THEN
            RETURN QUERY
                SELECT DISTINCT a.by, NULL::bigint, p.run, p.due
                  FROM {schema}.holdfast_post(p_now, v_to, '@exit', v_payload, v_sender) AS p
                  JOIN unnest(v_to, v_to_by) AS a (run, by) ON a.run = p.run;
        END IF;

        SELECT array_agg(c.id ORDER BY c.id), array_agg(a.by ORDER BY c.id),
               array_agg((SELECT {schema}.holdfast_pid(p.workflow, p.instance_id)
                            FROM {schema}.holdfast_run AS p WHERE p.id = a.run) ORDER BY c.id)
          INTO v_to, v_to_by, v_sender
          FROM unnest(v_ended, v_by) AS a (run, by) CROSS JOIN LATERAL {schema}.holdfast_children(a.run) AS c
         WHERE c.parent_close = 'request_cancel';
        IF v_to IS NOT NULL THEN
            v_payload := ARRAY(SELECT '{"reason":'::bytea || {schema}.holdfast_json(
                                   'its parent '::bytea || s || ' has ended'::bytea) || ',"deadlineMs":null}'::bytea
                                 FROM unnest(v_sender) WITH ORDINALITY AS a (s, o) ORDER BY o);
            RETURN QUERY
                SELECT a.by, NULL::bigint, p.run, p.due
                  FROM {schema}.holdfast_post(p_now, v_to, '@cancel', v_payload, v_sender) AS p
                  JOIN unnest(v_to, v_to_by) AS a (run, by) ON a.run = p.run;
        END IF;

        SELECT array_agg(c.id ORDER BY c.id), array_agg(a.by ORDER BY c.id) INTO v_ended, v_by
          FROM unnest(v_ended, v_by) AS a (run, by) CROSS JOIN LATERAL {schema}.holdfast_children(a.run) AS c
         WHERE c.parent_close = 'terminate';
        UPDATE {schema}.holdfast_run AS c
           SET status = 'terminated', updated_at = p_now, completed_at = p_now,
               note = 'its parent '::bytea || convert_to(c.parent, 'UTF8') || ' has ended'::bytea
         WHERE c.id = ANY (v_ended);
        DELETE FROM {schema}.holdfast_task WHERE run = ANY (v_ended);
        RETURN QUERY SELECT a.by, a.run, NULL::bigint, false FROM unnest(v_ended, v_by) AS a (run, by);
    END LOOP;
END $$;

-- Ends a run that lives, and whose task is locked. p_after: NULL, or the run that comes after it. It has those who
-- watched this one; with p_continues also the living children, and it watches what this one did.
CREATE FUNCTION {schema}.holdfast_end(
    p_now BIGINT, p_by TEXT, p_run BIGINT, p_status TEXT, p_output BYTEA, p_error BYTEA, p_note BYTEA, p_after BIGINT,
    p_continues BOOLEAN
) RETURNS {schema}.holdfast_touched LANGUAGE plpgsql AS $$
DECLARE
    v_bound BOOLEAN;
BEGIN
    UPDATE {schema}.holdfast_run
       SET status = p_status, output = p_output, error = p_error, note = p_note, updated_at = p_now, completed_at = p_now
     WHERE id = p_run;
    DELETE FROM {schema}.holdfast_task WHERE run = p_run AND unit = 0 RETURNING bound INTO v_bound;
    PERFORM pg_notify('{channel}', p_by);
    IF NOT v_bound THEN
        RETURN NULL;
    END IF;
    IF p_after IS NOT NULL THEN
        -- Who made the one that comes after may watch that already.
        WITH moving AS (DELETE FROM {schema}.holdfast_watch WHERE target = p_run RETURNING watcher, kind)
        INSERT INTO {schema}.holdfast_watch AS w (target, watcher, kind)
        SELECT p_after, m.watcher, m.kind FROM moving AS m
        ON CONFLICT (target, watcher) DO UPDATE SET kind = w.kind | excluded.kind;
        UPDATE {schema}.holdfast_task SET bound = true WHERE run = p_after AND unit = 0;
    END IF;
    IF p_continues THEN
        UPDATE {schema}.holdfast_watch SET watcher = p_after WHERE watcher = p_run;
        UPDATE {schema}.holdfast_run SET parent_run = p_after
         WHERE parent_run = p_run AND parent_run IS NOT NULL AND completed_at IS NULL;
        RETURN NULL;
    END IF;
    RETURN (SELECT ROW(array_agg(e.ended) FILTER (WHERE e.ended IS NOT NULL),
                       array_agg(DISTINCT e.woken) FILTER (WHERE e.woken IS NOT NULL),
                       bool_or(e.due))::{schema}.holdfast_touched
              FROM {schema}.holdfast_ended(p_now, ARRAY[p_run]) AS e);
END $$;

-- Makes the run that comes after the current one of an instance, and is like it. Nobody holds it.
CREATE FUNCTION {schema}.holdfast_make_next(
    p_now BIGINT, p_by TEXT, p_old BIGINT, p_token BIGINT, p_params BYTEA, p_run_at BIGINT, p_attempt BIGINT,
    p_expires_at BIGINT, p_expiry TEXT, p_options BYTEA
) RETURNS BIGINT LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_new BIGINT := nextval('{schema}.holdfast_run_id');
BEGIN
    UPDATE {schema}.holdfast_run SET current = false WHERE id = p_old;
    INSERT INTO {schema}.holdfast_run (id, instance, workflow, instance_id, number, current, kind, status, params, queue,
                                       priority, seed, created_at, updated_at, made_by, parent, parent_run,
                                       parent_close, attempt, options, memo, search)
    SELECT v_new, o.instance, o.workflow, o.instance_id, o.number + 1, true, o.kind,
           CASE WHEN p_run_at > p_now THEN 'waiting' ELSE 'active' END, p_params, o.queue, o.priority, o.seed,
           o.created_at, p_now, p_token, o.parent, o.parent_run, o.parent_close, p_attempt,
           coalesce(p_options, o.options), o.memo, o.search
      FROM {schema}.holdfast_run AS o WHERE o.id = p_old;
    INSERT INTO {schema}.holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, epoch, losses, lost,
                                        signal, topics, expires_at, expiry)
    SELECT v_new, 0, o.workflow, o.queue, 1, 3, o.priority, p_run_at, 0, 0, false, 0, '', p_expires_at, p_expiry
      FROM {schema}.holdfast_run AS o WHERE o.id = p_old;
    PERFORM pg_notify('{channel}', p_by);
    RETURN v_new;
END $$;

-- A turn has ended its run, and another comes after it (NextRun). What was not consumed of the mail is moved.
CREATE FUNCTION {schema}.holdfast_succeed(
    p_now BIGINT, p_by TEXT, p_run BIGINT, p_status TEXT, p_output BYTEA, p_error BYTEA, p_note BYTEA, p_token BIGINT,
    p_params BYTEA, p_run_at BIGINT, p_attempt BIGINT, p_expires_ms BIGINT, p_expiry TEXT, p_continues BOOLEAN,
    p_options BYTEA
) RETURNS {schema}.holdfast_touched LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_run_at BIGINT := coalesce(p_run_at, p_now);
    v_expires_at BIGINT := v_run_at + p_expires_ms;
    v_expiry TEXT := p_expiry;
    v_cancelled BIGINT;
    v_new BIGINT;
    v_moving BIGINT[];
    v_called BOOLEAN;
    v_touched {schema}.holdfast_touched;
BEGIN
    SELECT expires_at INTO v_cancelled FROM {schema}.holdfast_task WHERE run = p_run AND unit = 0 AND expiry = 'cancel';
    IF v_cancelled <= coalesce(v_expires_at, v_cancelled) THEN
        v_expires_at := v_cancelled;
        v_expiry := 'cancel';
    END IF;
    v_new := {schema}.holdfast_make_next(
        p_now, p_by, p_run, p_token, p_params, v_run_at, p_attempt, v_expires_at, v_expiry, p_options);
    v_moving := ARRAY(SELECT n FROM {schema}.holdfast_event
                       WHERE run = p_run AND delivered_at IS NULL
                         AND (p_continues OR type = '@cancel' OR type NOT LIKE '@%') ORDER BY n);
    IF cardinality(v_moving) > 0 THEN
        WITH moved AS (
            UPDATE {schema}.holdfast_event AS e SET run = v_new, n = m.place
              FROM unnest(v_moving) WITH ORDINALITY AS m (n, place)
             WHERE e.run = p_run AND e.n = m.n
            RETURNING e.type
        )
        SELECT bool_or(type LIKE '@%') INTO v_called FROM moved;
    END IF;
    IF v_called AND v_run_at > p_now THEN  -- the engine's mail does not let a run wait
        v_run_at := p_now;
        UPDATE {schema}.holdfast_task SET run_at = p_now WHERE run = v_new;
    END IF;
    v_touched := {schema}.holdfast_end(p_now, p_by, p_run, p_status, p_output, p_error, p_note, v_new, p_continues);
    v_touched.work := coalesce(v_touched.work, false) OR v_run_at <= p_now;
    RETURN v_touched;
END $$;

-- ---------------------------------------------------------------------------------------------------- making runs

-- Takes arrays apart, one entry for each run. Those of what runs seldom have may be NULL; p_letter_* and p_term_* are all
-- letters and terms, p_letters and p_terms where those of each run are among them, as a first and a last number.
CREATE FUNCTION {schema}.holdfast_news(
    p_token BIGINT[], p_workflow TEXT[], p_instance_id TEXT[], p_kind TEXT[], p_params BYTEA[], p_queue TEXT[],
    p_priority BIGINT[], p_delay_ms BIGINT[], p_seed BIGINT[], p_owner TEXT[], p_lease_ms BIGINT[],
    p_on_conflict TEXT[], p_on_reuse TEXT[], p_options BYTEA[], p_memo BYTEA[], p_search BYTEA[], p_expires_ms BIGINT[],
    p_expiry TEXT[], p_parent TEXT[], p_parent_run BIGINT[], p_parent_close TEXT[], p_watch INTEGER[], p_sender BYTEA[],
    p_letters_from INTEGER[], p_letters_to INTEGER[], p_terms_from INTEGER[], p_terms_to INTEGER[],
    p_letter_type TEXT[], p_letter_payload BYTEA[], p_term_key BYTEA[], p_term_text BYTEA[], p_term_number NUMERIC[]
) RETURNS {schema}.holdfast_new[] LANGUAGE sql VOLATILE AS $$
    SELECT array_agg(ROW(
               a.ord, nextval('{schema}.holdfast_run_id'), NULL, NULL, a.token, a.workflow, a.instance_id, a.kind,
               a.params, a.queue, a.priority, a.delay_ms, a.seed, a.owner, a.lease_ms, a.on_conflict, a.on_reuse,
               a.options, a.memo, a.search, a.expires_ms, a.expiry, a.parent, a.parent_run, a.parent_close, a.watch,
               a.sender, p_letter_type[a.l1:a.l2], p_letter_payload[a.l1:a.l2], p_term_key[a.t1:a.t2],
               p_term_text[a.t1:a.t2], p_term_number[a.t1:a.t2])::{schema}.holdfast_new ORDER BY a.ord)
      FROM unnest(p_token, p_workflow, p_instance_id, p_kind, p_params, p_queue, p_priority, p_delay_ms, p_seed,
                  p_owner, p_lease_ms, p_on_conflict, p_on_reuse, p_options, p_memo, p_search, p_expires_ms, p_expiry,
                  p_parent, p_parent_run, p_parent_close, p_watch, p_sender, p_letters_from, p_letters_to,
                  p_terms_from, p_terms_to)
           WITH ORDINALITY AS a (token, workflow, instance_id, kind, params, queue, priority, delay_ms, seed, owner,
                                 lease_ms, on_conflict, on_reuse, options, memo, search, expires_ms, expiry, parent,
                                 parent_run, parent_close, watch, sender, l1, l2, t1, t2, ord)
$$;

-- Inserts runs with all that they come with, those whose instance has no such number yet. Answers their ids.
CREATE FUNCTION {schema}.holdfast_insert(p_now BIGINT, p_by TEXT, p_new {schema}.holdfast_new[]) RETURNS BIGINT[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_made BIGINT[];
    v_free BIGINT;
    v_letters BOOLEAN;
    v_terms BOOLEAN;
    v_children BOOLEAN;
BEGIN
    -- In the order of their names, so that two batches do not wait for each other.
    WITH made AS (
        INSERT INTO {schema}.holdfast_run (id, instance, workflow, instance_id, number, current, kind, status, params,
                                           queue, priority, seed, created_at, updated_at, made_by, parent, parent_run,
                                           parent_close, options, memo, search)
        SELECT a.id, coalesce(a.instance, a.id), a.workflow, a.instance_id, coalesce(a.number, 0), true, a.kind,
               CASE WHEN a.delay_ms > 0 THEN 'waiting' ELSE 'active' END, a.params, a.queue, a.priority, a.seed, p_now,
               p_now, a.token, a.parent, a.parent_run, a.parent_close, a.options, a.memo, a.search
          FROM unnest(p_new) AS a ORDER BY a.workflow COLLATE "C", a.instance_id COLLATE "C", a.ord
        ON CONFLICT (workflow, instance_id, number) DO NOTHING
        RETURNING id
    )
    SELECT array_agg(id) INTO v_made FROM made;
    IF v_made IS NULL THEN
        RETURN NULL;
    ELSIF cardinality(v_made) < cardinality(p_new) THEN
        p_new := ARRAY(SELECT a FROM unnest(p_new) AS a WHERE a.id = ANY (v_made));
    END IF;
    WITH tasks AS (
        INSERT INTO {schema}.holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, owner,
                                            lease_until, epoch, losses, lost, signal, topics, expires_at, expiry, bound)
        SELECT a.id, 0, a.workflow, a.queue, 1, 3, a.priority, p_now + a.delay_ms, a.owner,
               CASE WHEN a.owner IS NOT NULL THEN p_now + a.lease_ms END,
               CASE WHEN a.owner IS NULL THEN 0 ELSE 1 END, 0, false, 0, '', p_now + a.expires_ms, a.expiry,
               a.parent_run IS NOT NULL
          FROM unnest(p_new) AS a
        RETURNING owner
    )
    SELECT count(*) FILTER (WHERE owner IS NULL) INTO v_free FROM tasks;
    IF v_free > 0 THEN
        PERFORM pg_notify('{channel}', p_by);
    END IF;

    SELECT bool_or(letter_type IS NOT NULL), bool_or(term_key IS NOT NULL), bool_or(parent_run IS NOT NULL)
      INTO v_letters, v_terms, v_children FROM unnest(p_new);
    IF v_letters THEN
        INSERT INTO {schema}.holdfast_event (run, n, type, payload, created_at, sender)
        SELECT a.id, l.n, l.type, l.payload, p_now, a.sender
          FROM unnest(p_new) AS a
         CROSS JOIN LATERAL unnest(a.letter_type, a.letter_payload) WITH ORDINALITY AS l (type, payload, n);
    END IF;
    IF v_terms THEN
        INSERT INTO {schema}.holdfast_term (instance, workflow, key, text, number)
        SELECT DISTINCT coalesce(a.instance, a.id), a.workflow, t.key, t.text, t.number
          FROM unnest(p_new) AS a
         CROSS JOIN LATERAL unnest(a.term_key, a.term_text, a.term_number) AS t (key, text, number);
    END IF;
    IF v_children THEN
        UPDATE {schema}.holdfast_task SET bound = true
         WHERE run = ANY (ARRAY(SELECT parent_run FROM unnest(p_new))) AND unit = 0 AND NOT bound;
        -- News of an earlier one's end, not read yet, would be taken for its own.
        DELETE FROM {schema}.holdfast_event AS e USING unnest(p_new) AS a
         WHERE a.instance IS NOT NULL AND e.run = a.parent_run AND e.type = '@exit' AND e.delivered_at IS NULL
           AND e.sender = {schema}.holdfast_pid(a.workflow, a.instance_id);
        -- Who watched one that had the id before watches this one already.
        INSERT INTO {schema}.holdfast_watch AS w (target, watcher, kind)
        SELECT a.id, a.parent_run, a.watch FROM unnest(p_new) AS a
         WHERE a.watch <> 0 AND (SELECT true FROM {schema}.holdfast_task AS t WHERE t.run = a.parent_run AND t.unit = 0)
        ON CONFLICT (target, watcher) DO UPDATE SET kind = w.kind | excluded.kind;
        INSERT INTO {schema}.holdfast_watch AS w (target, watcher, kind)
        SELECT a.parent_run, a.id, 2 FROM unnest(p_new) AS a
         WHERE a.watch & 2 <> 0 AND (SELECT true FROM {schema}.holdfast_task AS t WHERE t.run = a.parent_run AND t.unit = 0)
        ON CONFLICT (target, watcher) DO UPDATE SET kind = w.kind | excluded.kind;
    END IF;
    RETURN v_made;
END $$;

-- p_again: an earlier try of this call may have been done; its tokens tell.
CREATE FUNCTION {schema}.holdfast_create(p_now BIGINT, p_by TEXT, p_again BOOLEAN, p_new {schema}.holdfast_new[])
RETURNS TABLE (ord BIGINT, answer TEXT, run BIGINT, number BIGINT, instance BIGINT, at BIGINT, ended BIGINT[],
               woken BIGINT[], work BOOLEAN)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_made BIGINT[] := {schema}.holdfast_insert(v_now, p_by, p_new);
    v_touched {schema}.holdfast_touched;
    v_one {schema}.holdfast_new;
BEGIN
    RETURN QUERY
        SELECT a.ord, 'done', a.id, 0::bigint, a.id, v_now, NULL::bigint[], NULL::bigint[], false
          FROM unnest(p_new) AS a WHERE cardinality(v_made) = cardinality(p_new) OR a.id = ANY (v_made);
    IF cardinality(v_made) = cardinality(p_new) THEN
        RETURN;
    END IF;
    PERFORM 1 FROM {schema}.holdfast_task AS t
      WHERE t.run = ANY (ARRAY(SELECT {schema}.holdfast_current(a.workflow, a.instance_id)
                                 FROM unnest(p_new) AS a WHERE (a.id = ANY (v_made)) IS NOT TRUE))
      ORDER BY t.run, t.unit FOR NO KEY UPDATE;
    FOR v_one IN SELECT * FROM unnest(p_new) AS a WHERE (a.id = ANY (v_made)) IS NOT TRUE ORDER BY a.ord LOOP
        RETURN QUERY SELECT v_one.ord, x.* FROM {schema}.holdfast_reuse(v_now, p_by, p_again, v_one) AS x;
    END LOOP;
END $$;

-- The same for one run that comes with nothing else, which is what most are. NULL if its id is taken.
CREATE FUNCTION {schema}.holdfast_create_one(
    p_now BIGINT, p_by TEXT, p_token BIGINT, p_workflow TEXT, p_instance_id TEXT, p_kind TEXT, p_params BYTEA,
    p_queue TEXT, p_priority BIGINT, p_delay_ms BIGINT, p_seed BIGINT, p_owner TEXT, p_lease_ms BIGINT,
    p_quiet BOOLEAN, OUT run BIGINT, OUT at BIGINT
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    at := {schema}.holdfast_begin(p_now);
    run := nextval('{schema}.holdfast_run_id');
    INSERT INTO {schema}.holdfast_run (id, instance, workflow, instance_id, number, current, kind, status, params,
                                       queue, priority, seed, created_at, updated_at, made_by)
    VALUES (run, run, p_workflow, p_instance_id, 0, true, p_kind,
            CASE WHEN p_delay_ms > 0 THEN 'waiting' ELSE 'active' END, p_params, p_queue, p_priority, p_seed, at, at,
            p_token)
    ON CONFLICT (workflow, instance_id, number) DO NOTHING;
    IF NOT FOUND THEN
        run := NULL;
        RETURN;
    END IF;
    INSERT INTO {schema}.holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, owner, lease_until,
                                        epoch, losses, lost, signal, topics)
    VALUES (run, 0, p_workflow, p_queue, 1, 3, p_priority, at + p_delay_ms, p_owner,
            CASE WHEN p_owner IS NOT NULL THEN at + p_lease_ms END, CASE WHEN p_owner IS NULL THEN 0 ELSE 1 END, 0,
            false, 0, '');
    IF p_owner IS NULL AND NOT p_quiet THEN
        PERFORM pg_notify('{channel}', p_by);
    END IF;
END $$;

-- A run whose id is taken already: what becomes of it is for its policies to say.
CREATE FUNCTION {schema}.holdfast_reuse(
    p_now BIGINT, p_by TEXT, p_again BOOLEAN, p_new {schema}.holdfast_new,
    OUT answer TEXT, OUT run BIGINT, OUT number BIGINT, OUT instance BIGINT, OUT at BIGINT, OUT ended BIGINT[],
    OUT woken BIGINT[], OUT work BOOLEAN
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_old {schema}.holdfast_record;
    v_effect INTEGER;
    v_touched {schema}.holdfast_touched;
    v_policy TEXT;
BEGIN
    IF p_again THEN
        SELECT 'done', r.id, r.number, r.instance, r.created_at INTO answer, run, number, instance, at
          FROM {schema}.holdfast_run AS r
         WHERE r.workflow = p_new.workflow AND r.instance_id = p_new.instance_id AND r.made_by = p_new.token;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    IF p_new.on_conflict = 'terminate_existing' THEN
        run := {schema}.holdfast_lock_to_end(p_new.workflow, p_new.instance_id);
    ELSE
        run := {schema}.holdfast_lock(p_new.workflow, p_new.instance_id);
    END IF;
    SELECT * INTO v_old FROM {schema}.holdfast_record AS r WHERE r.run = holdfast_reuse.run;
    v_policy := coalesce(CASE WHEN v_old.epoch IS NULL THEN p_new.on_reuse ELSE p_new.on_conflict END, 'use_existing');
    IF v_policy IN ('fail', 'reject') OR (v_policy = 'allow_if_failed' AND v_old.status = 'complete') THEN
        answer := 'exists';
    ELSIF v_policy = 'use_existing' AND v_old.epoch IS NULL THEN
        answer := CASE WHEN p_new.letter_type IS NULL THEN 'existing' ELSE 'ended' END;
    ELSIF v_policy = 'use_existing' THEN
        answer := 'existing';
        FOR i IN 1..coalesce(cardinality(p_new.letter_type), 0) LOOP
            v_effect := {schema}.holdfast_put(
                p_now, v_old, p_new.letter_type[i], p_new.letter_payload[i], p_new.sender, NULL,
                '\xff'::bytea || int8send(p_new.token) || int4send(i), p_new.token);
            IF v_effect > 1 THEN
                woken := ARRAY[v_old.run];
                work := coalesce(work, false) OR v_effect = 3;
                PERFORM pg_notify('{channel}', p_by);
            END IF;
            SELECT * INTO v_old FROM {schema}.holdfast_record AS r WHERE r.run = v_old.run;  -- it may be due by now
        END LOOP;
    ELSE
        answer := 'done';
        run := p_new.id;
        number := v_old.number + 1;
        instance := v_old.instance;
        at := p_now;
        p_new.number := number;
        p_new.instance := instance;
        UPDATE {schema}.holdfast_run SET current = false WHERE id = v_old.run;
        DELETE FROM {schema}.holdfast_term AS t WHERE t.instance = v_old.instance;
        PERFORM {schema}.holdfast_insert(p_now, p_by, ARRAY[p_new]);
        IF v_old.epoch IS NOT NULL THEN
            v_touched := {schema}.holdfast_end(p_now, p_by, v_old.run, 'terminated', NULL, NULL,
                                               'terminated: another run was started with its id'::bytea, p_new.id, false);
            ended := v_old.run || v_touched.ended;
            woken := v_touched.woken;
            work := v_touched.work;
        END IF;
    END IF;
END $$;

-- ---------------------------------------------------------------------------------------------------- claims

-- Takes due tasks. p_doubtful: earlier claims of this owner whose answers got lost; what they took is answered now.
-- Runs that have expired come first and on top of p_limit. The last row has no run; it says when to ask again.
CREATE FUNCTION {schema}.holdfast_claim(
    p_now BIGINT, p_owner TEXT, p_lease_ms BIGINT, p_limit BIGINT, p_queues TEXT[], p_workflows TEXT[],
    p_buckets INTEGER[], p_token BIGINT, p_doubtful BIGINT[]
) RETURNS TABLE (ord BIGINT, now BIGINT, next_due BIGINT, overdue BOOLEAN, kind INTEGER, lost BOOLEAN, mail_n BIGINT[],
                 mail_type TEXT[], mail_payload BYTEA[], mail_at BIGINT[], mail_sender BYTEA[], mail_ask BYTEA[],
                 mail_last BIGINT, r {schema}.holdfast_record)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_runs BIGINT[] := '{}';
    v_lost BOOLEAN[] := '{}';
    v_found BIGINT[];
    v_found_lost BOOLEAN[];
    v_room BIGINT := p_limit;
    v_suspect BOOLEAN := false;
    v_rank RECORD;
    v_expires BIGINT;
BEGIN
    SELECT min(expires_at) INTO v_expires FROM {schema}.holdfast_task WHERE expires_at IS NOT NULL;
    IF v_expires <= v_now AND p_limit > 0 THEN
        RETURN QUERY SELECT NULL::bigint, v_now, NULL::bigint, true, o.kind, o.lost, NULL::bigint[], NULL::text[],
                            NULL::bytea[], NULL::bigint[], NULL::bytea[], NULL::bytea[], NULL::bigint, o.r
                       FROM {schema}.holdfast_overdue(v_now, p_owner, p_lease_ms) AS o;
        SELECT min(expires_at) INTO v_expires FROM {schema}.holdfast_task WHERE expires_at IS NOT NULL;
    END IF;
    IF cardinality(p_doubtful) > 0 THEN
        SELECT coalesce(array_agg(run), '{}'), coalesce(array_agg(losses > 0), '{}') INTO v_runs, v_lost
          FROM {schema}.holdfast_task WHERE owner = p_owner AND claimed_by = ANY (p_doubtful);
        v_room := greatest(v_room - cardinality(v_runs), 0);
    END IF;
    FOR v_rank IN
        SELECT bucket, priority, array_agg(queue) AS queues, array_agg(workflow) AS workflows
          FROM {schema}.holdfast_lanes(v_now, v_room, p_queues, p_workflows, p_buckets)
         WHERE run_at <= v_now GROUP BY bucket, priority ORDER BY bucket, priority
    LOOP
        IF v_rank.bucket = 2 THEN
            v_room := least(v_room, 1);
        END IF;
        EXIT WHEN v_room <= 0;
        SELECT array_agg(run ORDER BY run_at, run), array_agg(lost ORDER BY run_at, run)
          INTO v_found, v_found_lost
          FROM (SELECT d.run, d.run_at, d.lost
                  FROM unnest(v_rank.queues, v_rank.workflows) AS l (queue, workflow)
                 CROSS JOIN LATERAL (
                       SELECT t.run, t.run_at, t.lost FROM {schema}.holdfast_task AS t
                        WHERE t.owner IS NULL AND t.run_at IS NOT NULL AND t.queue = l.queue
                          AND t.workflow = l.workflow AND t.bucket = v_rank.bucket
                          AND t.priority = v_rank.priority AND t.run_at <= v_now
                        ORDER BY t.run_at, t.run LIMIT v_room FOR NO KEY UPDATE SKIP LOCKED) AS d
                 ORDER BY d.run_at, d.run LIMIT v_room) AS found;
        CONTINUE WHEN v_found IS NULL;
        v_runs := v_runs || v_found;
        v_lost := v_lost || v_found_lost;
        v_room := v_room - cardinality(v_found);
        v_suspect := v_rank.bucket = 2;
        EXIT WHEN v_suspect;
    END LOOP;
    IF cardinality(v_runs) > 0 THEN
        UPDATE {schema}.holdfast_task
           SET owner = p_owner, lease_until = v_now + p_lease_ms, lost = false, claimed_by = p_token,
               epoch = CASE WHEN owner IS NULL THEN epoch + 1 ELSE epoch END
         WHERE run = ANY (v_runs) AND unit = 0;
        UPDATE {schema}.holdfast_run SET status = 'active', updated_at = v_now
         WHERE id = ANY (v_runs) AND status = 'waiting';
        RETURN QUERY
            SELECT a.ord, v_now, NULL::bigint, false, t.kind, a.lost, m.*, rec
              FROM unnest(v_runs, v_lost) WITH ORDINALITY AS a (run, lost, ord)
              JOIN {schema}.holdfast_task AS t ON t.run = a.run AND t.unit = 0
              JOIN {schema}.holdfast_record AS rec ON rec.run = a.run
             CROSS JOIN LATERAL {schema}.holdfast_mailbag(a.run, 0) AS m
             ORDER BY a.ord;
    END IF;
    RETURN QUERY
        SELECT NULL::bigint, v_now, least(min(run_at), v_expires), NULL::boolean, NULL::int, NULL::boolean,
               NULL::bigint[], NULL::text[], NULL::bytea[], NULL::bigint[], NULL::bytea[], NULL::bytea[], NULL::bigint,
               NULL::{schema}.holdfast_record
          FROM {schema}.holdfast_lanes(v_now, p_limit, p_queues, p_workflows,
                                       CASE WHEN v_suspect THEN array_remove(p_buckets, 2) ELSE p_buckets END);
END $$;

-- Takes runs whose time has run out, whoever holds them, paused or not. A pause does not keep them from ending, and
-- nobody else is to take them before this lease has run out; so a claim of them whose answer got lost is not asked for.
CREATE FUNCTION {schema}.holdfast_overdue(p_now BIGINT, p_owner TEXT, p_lease_ms BIGINT)
RETURNS TABLE (kind INTEGER, lost BOOLEAN, r {schema}.holdfast_record) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_one RECORD;
    v_rec {schema}.holdfast_record;
BEGIN
    FOR v_one IN
        SELECT t.run, t.kind, t.lost OR t.owner IS NOT NULL AS lost, t.expires_at FROM {schema}.holdfast_task AS t
         WHERE t.expires_at IS NOT NULL AND t.expires_at <= p_now AND t.unit = 0
         ORDER BY t.expires_at LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        UPDATE {schema}.holdfast_task AS t
           SET owner = p_owner, lease_until = p_now + p_lease_ms, lost = false, claimed_by = NULL, epoch = t.epoch + 1,
               signal = 0, expires_at = p_now + p_lease_ms
         WHERE t.run = v_one.run AND t.unit = 0;
        SELECT * INTO v_rec FROM {schema}.holdfast_record WHERE run = v_one.run;
        v_rec.expires_at := v_one.expires_at;
        RETURN QUERY SELECT v_one.kind, v_one.lost, v_rec;
    END LOOP;
END $$;

-- Every lane (queue, workflow, bucket, priority) of what is asked for, with its head: the earliest run_at. One seek per
-- lane, however long the lanes are. A chain of lanes stops once it has as many due ones as can be taken.
CREATE FUNCTION {schema}.holdfast_lanes(
    p_now BIGINT, p_limit BIGINT, p_queues TEXT[], p_workflows TEXT[], p_buckets INTEGER[]
) RETURNS TABLE (queue TEXT, workflow TEXT, bucket INTEGER, priority BIGINT, run_at BIGINT)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH RECURSIVE lane AS (
        SELECT t.queue, t.workflow, t.bucket, t.priority, t.run_at, (t.run_at <= p_now)::int AS due
          FROM unnest(p_queues) AS q (name)
         CROSS JOIN unnest(p_workflows) AS w (name)
         CROSS JOIN unnest(p_buckets) AS b (n)
         CROSS JOIN LATERAL (
               SELECT * FROM {schema}.holdfast_task
                WHERE owner IS NULL AND run_at IS NOT NULL
                  AND queue = q.name AND workflow = w.name AND bucket = b.n
                ORDER BY priority, run_at LIMIT 1) AS t
        UNION ALL
        SELECT t.queue, t.workflow, t.bucket, t.priority, t.run_at, l.due + (t.run_at <= p_now)::int
          FROM lane AS l
         CROSS JOIN LATERAL (
               SELECT * FROM {schema}.holdfast_task
                WHERE owner IS NULL AND run_at IS NOT NULL
                  AND queue = l.queue AND workflow = l.workflow AND bucket = l.bucket AND priority > l.priority
                ORDER BY priority, run_at LIMIT 1) AS t
         WHERE l.due < p_limit
    )
    SELECT l.queue, l.workflow, l.bucket, l.priority, l.run_at FROM lane AS l;
END $$;

-- ---------------------------------------------------------------------------------------------------- commits

-- A batch of commits of different runs. p_c_* has one entry for each commit, p_f_*, p_d_* and p_l_* one for each fact,
-- delivery and log line, with the number of its commit and what that commit must have come to for it to be written.
-- What becomes of a commit: 0 lost, 1 pausing (steps are in flight), 2 paused, 3 what follows is done too.
-- What comes next: 0 keep, 1 finish, 2 park, 3 release.
-- p_line and p_n name the receipt; NULL where the caller can tell by itself whether its transaction was committed.
CREATE FUNCTION {schema}.holdfast_commit(
    p_now BIGINT, p_by TEXT, p_line INTEGER, p_n BIGINT,
    p_c_run BIGINT[], p_c_unit BIGINT[], p_c_owner TEXT[], p_c_epoch BIGINT[], p_c_in_flight BIGINT[],
    p_c_started_at BIGINT[], p_c_seen BIGINT[], p_c_progress BOOLEAN[], p_c_next INTEGER[], p_c_status TEXT[],
    p_c_output BYTEA[], p_c_error BYTEA[], p_c_note BYTEA[], p_c_run_at BIGINT[], p_c_kind INTEGER[],
    p_c_bucket INTEGER[], p_c_topics TEXT[],
    p_f_commit INTEGER[], p_f_needs INTEGER[], p_f_state INTEGER[], p_f_key BYTEA[], p_f_n BIGINT[], p_f_kind TEXT[],
    p_f_at BIGINT[], p_f_started_at BIGINT[], p_f_seq BIGINT[], p_f_ok BOOLEAN[], p_f_value BYTEA[],
    p_f_name BYTEA[], p_f_attempts BIGINT[], p_f_max_attempts BIGINT[], p_f_timeout_ms BIGINT[],
    p_f_wake_at BIGINT[], p_f_event_type TEXT[], p_f_event BIGINT[],
    p_d_commit INTEGER[], p_d_event BIGINT[], p_d_key BYTEA[], p_d_at BIGINT[],
    p_l_commit INTEGER[], p_l_needs INTEGER[], p_l_level TEXT[], p_l_category TEXT[], p_l_message BYTEA[],
    p_l_data BYTEA[], p_l_at BIGINT[], p_l_step_key BYTEA[], p_l_attempt BIGINT[], p_l_is_replay BOOLEAN[]
) RETURNS TABLE (verdicts INTEGER[], signals INTEGER[], due BOOLEAN[], more TEXT) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_state INTEGER[] := array_fill(0, ARRAY[cardinality(p_c_run)]);
    v_signal INTEGER[] := v_state;
    v_losses INTEGER[] := v_state;
    v_due BOOLEAN[] := array_fill(false, ARRAY[cardinality(p_c_run)]);
    v_held RECORD;
    v_bound BIGINT[];
    v_more TEXT;
    v_told BOOLEAN := false;
    v_count BIGINT;
    v_receipt {schema}.holdfast_receipt;
BEGIN
    -- Runs whose end concerns others: all that is changed is locked in one go, in the order of locks.
    SELECT array_agg(t.run) INTO v_bound FROM {schema}.holdfast_task AS t
     WHERE t.run = ANY (ARRAY(SELECT a.run FROM unnest(p_c_run, p_c_next) AS a (run, next) WHERE a.next = 1))
       AND t.unit = 0 AND t.bound;
    IF v_bound IS NOT NULL THEN
        PERFORM {schema}.holdfast_lock_family(v_bound, p_c_run);
        v_bound := NULL;
    END IF;

    -- The fence: the task as it is now, locked, and only if run, unit, owner and epoch are those of the claim.
    -- IS TRUE, because the index by owner would find all that the owner holds, for each of them.
    FOR v_held IN
        SELECT a.ord, a.run, a.in_flight, a.next, t.signal, t.losses, t.bound
          FROM unnest(p_c_run, p_c_unit, p_c_owner, p_c_epoch, p_c_in_flight, p_c_next)
               WITH ORDINALITY AS a (run, unit, owner, epoch, in_flight, next, ord)
          JOIN {schema}.holdfast_task AS t
            ON t.run = a.run AND t.unit = a.unit AND (t.owner = a.owner) IS TRUE AND t.epoch = a.epoch
         ORDER BY a.run FOR NO KEY UPDATE OF t
    LOOP
        v_signal[v_held.ord] := v_held.signal;
        v_losses[v_held.ord] := v_held.losses;
        v_state[v_held.ord] := CASE WHEN v_held.signal & 2 = 0 THEN 3 WHEN v_held.in_flight = 0 THEN 2 ELSE 1 END;
        IF v_held.bound AND v_held.next = 1 AND v_state[v_held.ord] = 3 THEN
            v_bound := v_bound || v_held.run;
        END IF;
    END LOOP;

    -- Only now, with the locks: an earlier try of this very call may have been under way until a moment ago.
    SELECT * INTO v_receipt FROM {schema}.holdfast_receipt WHERE store = p_by AND line = p_line AND n >= p_n;
    IF FOUND THEN
        IF v_receipt.n > p_n THEN
            RAISE EXCEPTION 'a late copy of a commit that was answered long ago' USING ERRCODE = 'HF002';
        END IF;
        RETURN QUERY SELECT v_receipt.verdicts, v_receipt.signals, v_receipt.due, v_receipt.more;
        RETURN;
    END IF;

    IF cardinality(p_f_commit) > 0 THEN
        INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, value, name, attempts,
                                            max_attempts, timeout_ms, wake_at, event_type, event)
        SELECT p_c_run[f.c], f.state, f.key, f.n, f.kind, f.at, f.started_at, f.seq, f.ok, f.value, f.name,
               f.attempts, f.max_attempts, f.timeout_ms, f.wake_at, f.event_type, f.event
          FROM unnest(p_f_commit, p_f_needs, p_f_state, p_f_key, p_f_n, p_f_kind, p_f_at, p_f_started_at, p_f_seq,
                      p_f_ok, p_f_value, p_f_name, p_f_attempts, p_f_max_attempts, p_f_timeout_ms, p_f_wake_at,
                      p_f_event_type, p_f_event)
               AS f (c, needs, state, key, n, kind, at, started_at, seq, ok, value, name, attempts, max_attempts,
                     timeout_ms, wake_at, event_type, event)
         WHERE v_state[f.c] >= f.needs;
    END IF;

    IF cardinality(p_d_commit) > 0 THEN
        UPDATE {schema}.holdfast_event AS e SET delivered_at = d.at, consumed_by = d.key
          FROM unnest(p_d_commit, p_d_event, p_d_key, p_d_at) AS d (c, event, key, at)
         WHERE e.run = p_c_run[d.c] AND e.n = d.event AND e.delivered_at IS NULL AND v_state[d.c] > 0;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        IF v_count <> (SELECT count(*) FROM unnest(p_d_commit) AS d (c) WHERE v_state[d.c] > 0) THEN
            RAISE EXCEPTION 'an event cannot be consumed: it is not there, or was before' USING ERRCODE = 'HF001';
        END IF;
    END IF;

    IF cardinality(p_l_commit) > 0 THEN
        INSERT INTO {schema}.holdfast_log (run, n, level, category, message, data, at, step_key, attempt, is_replay)
        SELECT p_c_run[l.c],
               coalesce((SELECT max(n) FROM {schema}.holdfast_log WHERE run = p_c_run[l.c]), 0)
                   + row_number() OVER (PARTITION BY l.c ORDER BY l.ord),
               l.level, l.category, l.message, l.data, l.at, l.step_key, l.attempt, l.is_replay
          FROM unnest(p_l_commit, p_l_needs, p_l_level, p_l_category, p_l_message, p_l_data, p_l_at, p_l_step_key,
                      p_l_attempt, p_l_is_replay)
               WITH ORDINALITY AS l (c, needs, level, category, message, data, at, step_key, attempt, is_replay, ord)
         WHERE v_state[l.c] >= l.needs;
    END IF;

    -- A commit whose run and task stay as they are, the most common one, has no part in what follows.
    IF EXISTS (SELECT FROM unnest(v_state, p_c_next, p_c_started_at, v_signal, v_losses)
                 AS a (state, next, started_at, signal, losses)
                WHERE a.state > 0 AND (a.next > 0 OR a.state < 3 OR a.started_at IS NOT NULL OR a.signal <> 0
                                       OR a.losses <> 0)) THEN
        -- Events that the turn has not seen and that it waits for.
        SELECT array_agg(a.state = 3 AND a.next = 3 AND EXISTS (
                   SELECT FROM {schema}.holdfast_event AS e
                    WHERE e.run = a.run AND e.n > a.seen AND e.delivered_at IS NULL
                      AND {schema}.holdfast_wanted(e.type, a.topics)) ORDER BY a.ord)
          INTO v_due
          FROM unnest(v_state, p_c_next, p_c_run, p_c_seen, p_c_topics)
               WITH ORDINALITY AS a (state, next, run, seen, topics, ord);

        UPDATE {schema}.holdfast_run AS r
           SET started_at = coalesce(r.started_at, a.started_at), updated_at = v_now,
               status = CASE WHEN a.what IN (1, 3) THEN a.status WHEN a.what = 2 THEN 'paused' ELSE r.status END,
               note = CASE WHEN a.what IN (1, 2) THEN a.note ELSE r.note END,
               output = CASE WHEN a.what = 1 THEN a.output ELSE r.output END,
               error = CASE WHEN a.what = 1 THEN a.error ELSE r.error END,
               completed_at = CASE WHEN a.what = 1 THEN v_now ELSE r.completed_at END
          FROM (SELECT a.*, CASE a.state WHEN 3 THEN a.next WHEN 2 THEN 2 ELSE 0 END AS what
                  FROM unnest(v_state, p_c_run, p_c_next, p_c_started_at, p_c_status, p_c_output, p_c_error,
                              -- the note of a pause that was asked for is none
                              ARRAY(SELECT CASE WHEN s = 3 THEN n END FROM unnest(v_state, p_c_note) AS x (s, n)))
                       AS a (state, run, next, started_at, status, output, error, note)
                 WHERE a.state > 0) AS a
         WHERE r.id = a.run AND (a.what > 0 OR (a.started_at IS NOT NULL AND r.started_at IS NULL));

        DELETE FROM {schema}.holdfast_task AS t
         USING unnest(v_state, p_c_run, p_c_next) AS a (state, run, next)
         WHERE t.run = a.run AND a.state = 3 AND a.next = 1;
        v_told := FOUND;
        UPDATE {schema}.holdfast_task AS t
           SET owner = CASE WHEN a.what = 0 THEN t.owner END, lease_until = CASE WHEN a.what = 0 THEN t.lease_until END,
               run_at = CASE a.what WHEN 0 THEN t.run_at WHEN 3 THEN CASE WHEN a.due THEN v_now ELSE a.run_at END END,
               kind = CASE WHEN a.what <> 3 THEN t.kind WHEN a.due THEN 0 ELSE a.kind END,
               bucket = CASE WHEN a.what <> 3 THEN t.bucket WHEN a.due THEN 0 ELSE a.bucket END,
               topics = CASE WHEN a.what = 3 THEN a.topics ELSE t.topics END,
               losses = CASE WHEN a.what > 0 OR a.progress THEN 0 ELSE t.losses END,
               signal = CASE WHEN a.what > 0 THEN 0 WHEN a.state = 1 THEN t.signal ELSE t.signal & ~1 END
          FROM (SELECT a.*, CASE a.state WHEN 3 THEN a.next WHEN 2 THEN 2 ELSE 0 END AS what
                  FROM unnest(v_state, p_c_run, p_c_unit, p_c_next, p_c_run_at, p_c_kind, p_c_bucket, p_c_topics,
                              p_c_progress, v_due)
                       AS a (state, run, unit, next, run_at, kind, bucket, topics, progress, due)
                 WHERE a.state > 0) AS a
         WHERE t.run = a.run AND t.unit = a.unit AND a.what <> 1
           AND (a.what > 0 OR (a.progress AND t.losses <> 0) OR (a.state = 3 AND t.signal & 1 <> 0));

        IF v_bound IS NOT NULL THEN  -- with the tasks given back: who watches may be of the same batch
            SELECT jsonb_object_agg(by, jsonb_build_object('ended', ended, 'woken', woken, 'work', due))::text INTO v_more
              FROM (SELECT by, array_agg(ended) FILTER (WHERE ended IS NOT NULL) AS ended,
                           array_agg(DISTINCT woken) FILTER (WHERE woken IS NOT NULL) AS woken, bool_or(due) AS due
                      FROM {schema}.holdfast_ended(v_now, v_bound) GROUP BY by) AS e;
        END IF;

        v_told := v_told OR EXISTS (
            SELECT FROM unnest(v_state, p_c_next, p_c_run_at, v_due) AS a (state, next, run_at, due)
             WHERE a.state = 2 OR (a.state = 3 AND (a.next = 2 OR a.due OR (a.next = 3 AND a.run_at <= v_now))));
        IF v_told THEN
            PERFORM pg_notify('{channel}', p_by);
        END IF;
    END IF;

    SELECT array_agg(CASE WHEN s = 3 AND x = 0 THEN g ELSE 0 END ORDER BY o) INTO v_signal
      FROM unnest(v_state, p_c_next, v_signal) WITH ORDINALITY AS a (s, x, g, o);
    IF p_line IS NOT NULL THEN
        INSERT INTO {schema}.holdfast_receipt (store, line, n, at, verdicts, signals, due, more)
        VALUES (p_by, p_line, p_n, v_now, v_state, v_signal, v_due, v_more)
        ON CONFLICT (store, line) DO UPDATE
           SET n = excluded.n, at = excluded.at, verdicts = excluded.verdicts, signals = excluded.signals,
               due = excluded.due, more = excluded.more;
    END IF;
    RETURN QUERY SELECT v_state, v_signal, v_due, v_more;
END $$;

-- The most common commit: one turn with one fact and at most one event consumed, which goes on, waits or ends the run.
-- Half the time of the general one, which has to take fifty arrays apart. p_next: as there. 0, and nothing is done, if
-- there is more to it: a signal, losses, an end that concerns others; 1 done; 2 done, and the task is due at once.
-- It leaves no receipt: the fact itself tells by p_token that it was done. p_again: an earlier try may have. p_quiet: no
-- other store listens.
CREATE FUNCTION {schema}.holdfast_commit_one(
    p_now BIGINT, p_by TEXT, p_line INTEGER, p_n BIGINT, p_run BIGINT, p_unit BIGINT, p_owner TEXT, p_epoch BIGINT,
    p_state INTEGER, p_key BYTEA, p_fact_n BIGINT, p_kind TEXT, p_at BIGINT, p_started_at BIGINT, p_seq BIGINT,
    p_ok BOOLEAN, p_value BYTEA, p_name BYTEA, p_attempts BIGINT, p_max_attempts BIGINT, p_timeout_ms BIGINT,
    p_wake_at BIGINT, p_event_type TEXT, p_event BIGINT,
    p_d_event BIGINT, p_d_key BYTEA, p_d_at BIGINT, p_run_started_at BIGINT,
    p_next INTEGER, p_status TEXT, p_output BYTEA, p_error BYTEA, p_note BYTEA, p_run_at BIGINT, p_task_kind INTEGER,
    p_bucket INTEGER, p_topics TEXT, p_seen BIGINT, p_token BIGINT, p_again BOOLEAN, p_quiet BOOLEAN
) RETURNS INTEGER LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_due BOOLEAN := false;
BEGIN
    IF p_again THEN
        -- A try still under way has the lock. What the long way has done is told by its receipt.
        PERFORM FROM {schema}.holdfast_task WHERE run = p_run AND unit = p_unit FOR NO KEY UPDATE;
        IF EXISTS (SELECT FROM {schema}.holdfast_fact
                    WHERE run = p_run AND state = p_state AND key = p_key AND n = p_fact_n AND written_by = p_token) THEN
            RETURN CASE WHEN p_next = 3 AND EXISTS (
                SELECT FROM {schema}.holdfast_task
                 WHERE run = p_run AND unit = p_unit AND owner IS NULL AND run_at <= v_now) THEN 2 ELSE 1 END;
        ELSIF EXISTS (SELECT FROM {schema}.holdfast_receipt WHERE store = p_by AND line = p_line AND n >= p_n) THEN
            RETURN 0;
        END IF;
    END IF;
    -- The fence is part of what is done to the task.
    IF p_next = 0 THEN
        PERFORM FROM {schema}.holdfast_task
          WHERE run = p_run AND unit = p_unit AND (owner = p_owner) IS TRUE AND epoch = p_epoch AND signal = 0
            AND losses = 0
            FOR NO KEY UPDATE;
    ELSIF p_next = 1 THEN
        DELETE FROM {schema}.holdfast_task
         WHERE run = p_run AND unit = p_unit AND (owner = p_owner) IS TRUE AND epoch = p_epoch AND signal = 0
           AND losses = 0 AND NOT bound;
    ELSE
        UPDATE {schema}.holdfast_task
           SET owner = NULL, lease_until = NULL, topics = p_topics, run_at = p_run_at, kind = p_task_kind,
               bucket = p_bucket
         WHERE run = p_run AND unit = p_unit AND (owner = p_owner) IS TRUE AND epoch = p_epoch AND signal = 0
           AND losses = 0;
    END IF;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    IF p_next = 3 THEN  -- only now, with the task locked, no more events can come
        v_due := EXISTS (SELECT FROM {schema}.holdfast_event
                          WHERE run = p_run AND n > p_seen AND delivered_at IS NULL AND n IS DISTINCT FROM p_d_event
                            AND {schema}.holdfast_wanted(type, p_topics));
    END IF;
    INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, value, name, attempts,
                                        max_attempts, timeout_ms, wake_at, event_type, event, written_by)
    VALUES (p_run, p_state, p_key, p_fact_n, p_kind, p_at, p_started_at, p_seq, p_ok, p_value, p_name, p_attempts,
            p_max_attempts, p_timeout_ms, p_wake_at, p_event_type, p_event, p_token);
    IF p_d_event IS NOT NULL THEN
        UPDATE {schema}.holdfast_event SET delivered_at = p_d_at, consumed_by = p_d_key
         WHERE run = p_run AND n = p_d_event AND delivered_at IS NULL;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'an event cannot be consumed: it is not there, or was before' USING ERRCODE = 'HF001';
        END IF;
    END IF;
    IF p_next = 1 THEN
        UPDATE {schema}.holdfast_run
           SET started_at = coalesce(started_at, p_run_started_at), updated_at = v_now, status = p_status,
               note = p_note, output = p_output, error = p_error, completed_at = v_now
         WHERE id = p_run;
    ELSIF p_next = 3 THEN
        UPDATE {schema}.holdfast_run
           SET started_at = coalesce(started_at, p_run_started_at), updated_at = v_now, status = p_status
         WHERE id = p_run;
    ELSIF p_run_started_at IS NOT NULL THEN
        UPDATE {schema}.holdfast_run SET started_at = p_run_started_at, updated_at = v_now
         WHERE id = p_run AND started_at IS NULL;
    END IF;
    IF v_due THEN
        UPDATE {schema}.holdfast_task SET run_at = v_now, kind = 0, bucket = 0 WHERE run = p_run AND unit = p_unit;
    END IF;
    IF NOT p_quiet AND (p_next = 1 OR v_due OR (p_next = 3 AND p_run_at <= v_now)) THEN
        PERFORM pg_notify('{channel}', p_by);
    END IF;
    RETURN CASE WHEN v_due THEN 2 ELSE 1 END;
END $$;

-- ---------------------------------------------------------------------------------------------------- acts

CREATE FUNCTION {schema}.holdfast_deeds(
    p_what TEXT[], p_workflow TEXT[], p_instance_id TEXT[], p_type TEXT[], p_payload BYTEA[], p_sender BYTEA[],
    p_dedup BYTEA[], p_ask BYTEA[], p_token BIGINT[], p_number BIGINT[], p_note BYTEA[], p_ok BOOLEAN[]
) RETURNS {schema}.holdfast_deed[] LANGUAGE sql STABLE AS $$
    SELECT array_agg(ROW(a.what, a.workflow, a.instance_id, a.type, a.payload, a.sender, a.dedup, a.ask, a.token,
                         a.number, a.note, a.ok)::{schema}.holdfast_deed ORDER BY a.ord)
      FROM unnest(p_what, p_workflow, p_instance_id, p_type, p_payload, p_sender, p_dedup, p_ask, p_token, p_number,
                  p_note, p_ok)
           WITH ORDINALITY AS a (what, workflow, instance_id, type, payload, sender, dedup, ask, token, number, note,
                                 ok, ord)
$$;

-- Before a commit that reaches other runs: the time, with the tasks of all of them and its own locked in one go.
CREATE FUNCTION {schema}.holdfast_reach(
    p_now BIGINT, p_run BIGINT, p_ends BOOLEAN, p_deeds {schema}.holdfast_deed[], p_new {schema}.holdfast_new[]
) RETURNS BIGINT LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_ending BIGINT[];
    v_others BIGINT[];
BEGIN
    SELECT array_agg(run) FILTER (WHERE what = 'terminate'), array_agg(run)
      INTO v_ending, v_others
      FROM (SELECT d.what, CASE d.what
                WHEN 'answer' THEN {schema}.holdfast_run_of(
                    (SELECT e.sender FROM {schema}.holdfast_event AS e WHERE e.run = p_run AND e.n = d.number))
                ELSE {schema}.holdfast_current(d.workflow, d.instance_id) END AS run
              FROM unnest(p_deeds) AS d WHERE d.what <> 'start'
            UNION ALL
            SELECT CASE WHEN n.on_conflict = 'terminate_existing' THEN 'terminate' END,
                   {schema}.holdfast_current(n.workflow, n.instance_id)
              FROM unnest(p_new) AS n) AS x
     WHERE run IS NOT NULL;
    IF p_ends AND EXISTS (SELECT FROM {schema}.holdfast_task WHERE run = p_run AND unit = 0 AND bound) THEN
        v_ending := v_ending || p_run;
    END IF;
    IF v_others IS NOT NULL OR v_ending IS NOT NULL THEN
        PERFORM {schema}.holdfast_lock_family(v_ending, v_others || p_run);
    END IF;
    RETURN v_now;
END $$;

-- What follows a commit that holdfast_commit has written (p_state: what became of it, p_more: what was answered to it
-- the first time): attributes, acts with their facts, and the end. Answers, as JSON, what came of it.
CREATE FUNCTION {schema}.holdfast_follow(
    p_state INTEGER, p_more TEXT, p_now BIGINT, p_by TEXT, p_line INTEGER, p_run BIGINT,
    p_deeds {schema}.holdfast_deed[], p_new {schema}.holdfast_new[],
    p_f_state INTEGER[], p_f_key BYTEA[], p_f_n BIGINT[], p_f_kind TEXT[], p_f_at BIGINT[], p_f_started_at BIGINT[],
    p_f_seq BIGINT[], p_f_name BYTEA[], p_f_attempts BIGINT[], p_f_max_attempts BIGINT[], p_f_timeout_ms BIGINT[],
    p_f_wake_at BIGINT[], p_f_event_type TEXT[], p_f_event BIGINT[],
    p_memo BYTEA, p_search BYTEA, p_term_key BYTEA[], p_term_text BYTEA[], p_term_number NUMERIC[],
    p_status TEXT, p_output BYTEA, p_error BYTEA, p_note BYTEA, p_next BOOLEAN, p_params BYTEA, p_run_at BIGINT,
    p_attempt BIGINT, p_expires_ms BIGINT, p_expiry TEXT, p_continues BOOLEAN, p_options BYTEA, p_token BIGINT
) RETURNS TEXT LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_own {schema}.holdfast_record;
    v_touched {schema}.holdfast_touched;
    v_acted TEXT[] := '{}';
    v_born TEXT[];
    v_first INTEGER := 1;
    v_last INTEGER;
    v_some RECORD;
    v_more TEXT;
BEGIN
    IF p_more IS NOT NULL OR p_state < 3 THEN
        RETURN p_more;
    END IF;
    SELECT * INTO v_own FROM {schema}.holdfast_record WHERE run = p_run;
    IF p_memo IS NOT NULL OR p_search IS NOT NULL THEN
        UPDATE {schema}.holdfast_run
           SET memo = coalesce(p_memo, memo), search = coalesce(p_search, search), updated_at = p_now
         WHERE id = p_run;
    END IF;
    IF p_search IS NOT NULL THEN
        DELETE FROM {schema}.holdfast_term WHERE instance = v_own.instance;
        INSERT INTO {schema}.holdfast_term (instance, workflow, key, text, number)
        SELECT DISTINCT v_own.instance, v_own.workflow, t.key, t.text, t.number
          FROM unnest(p_term_key, p_term_text, p_term_number) AS t (key, text, number);
    END IF;

    WHILE v_first <= coalesce(cardinality(p_deeds), 0) LOOP
        v_last := v_first;
        IF p_run = ANY (v_touched.ended) THEN  -- by an act before this one
            v_acted := v_acted || 'ended'::text;
        ELSIF p_deeds[v_first].what = 'start' THEN  -- neighbours are made together
            WHILE p_deeds[v_last + 1].what = 'start' LOOP
                v_last := v_last + 1;
            END LOOP;
            FOR v_some IN
                SELECT * FROM {schema}.holdfast_create(
                    p_now, p_by, false, p_new[p_deeds[v_first].number:p_deeds[v_last].number])
            LOOP
                v_acted[v_first + v_some.ord - p_deeds[v_first].number] := v_some.answer;
                IF v_some.answer = 'done' AND p_new[v_some.ord].owner IS NOT NULL THEN
                    v_born := v_born || jsonb_build_array(
                        v_first + v_some.ord - p_deeds[v_first].number, v_some.run, v_some.number, v_some.instance)::text;
                ELSIF v_some.answer = 'done' THEN
                    v_some.work := v_some.work OR p_new[v_some.ord].delay_ms <= 0;
                END IF;
                v_touched.ended := v_touched.ended || v_some.ended;
                v_touched.woken := v_touched.woken || v_some.woken;
                v_touched.work := coalesce(v_touched.work, false) OR coalesce(v_some.work, false);
            END LOOP;
        ELSE
            SELECT d.* INTO v_some FROM {schema}.holdfast_act(p_now, p_by, v_own, p_deeds[v_first]) AS d;
            v_acted := v_acted || v_some.answer;
            v_touched := {schema}.holdfast_and(v_touched, v_some.touched);
        END IF;
        v_first := v_last + 1;
    END LOOP;
    INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, value, name, attempts,
                                        max_attempts, timeout_ms, wake_at, event_type, event)
    SELECT p_run, f.state, f.key, f.n, f.kind, f.at, f.started_at, f.seq, f.answer IN ('done', 'existing'),
           convert_to('"' || f.answer || '"', 'UTF8'), f.name, f.attempts, f.max_attempts, f.timeout_ms, f.wake_at,
           f.event_type, f.event
      FROM unnest(v_acted, p_f_state, p_f_key, p_f_n, p_f_kind, p_f_at, p_f_started_at, p_f_seq, p_f_name, p_f_attempts,
                  p_f_max_attempts, p_f_timeout_ms, p_f_wake_at, p_f_event_type, p_f_event)
           AS f (answer, state, key, n, kind, at, started_at, seq, name, attempts, max_attempts, timeout_ms, wake_at,
                 event_type, event);

    IF p_status IS NOT NULL AND EXISTS (SELECT FROM {schema}.holdfast_task WHERE run = p_run) THEN  -- no act ended it
        v_touched := {schema}.holdfast_and(v_touched, CASE
            WHEN p_next THEN {schema}.holdfast_succeed(
                p_now, p_by, p_run, p_status, p_output, p_error, p_note, p_token, p_params, p_run_at, p_attempt,
                p_expires_ms, p_expiry, p_continues, p_options)
            ELSE {schema}.holdfast_end(p_now, p_by, p_run, p_status, p_output, p_error, p_note, NULL, false) END);
    END IF;
    -- What it did to itself it is told at once.
    UPDATE {schema}.holdfast_task SET signal = signal & ~1 WHERE run = p_run AND unit = 0 AND signal & 1 <> 0;
    v_more := jsonb_build_object('acted', v_acted, 'born', v_born, 'at', p_now, 'mail', FOUND, 'ended', v_touched.ended,
                                 'woken', v_touched.woken, 'work', v_touched.work)::text;
    UPDATE {schema}.holdfast_receipt SET more = v_more WHERE store = p_by AND line = p_line;
    RETURN v_more;
END $$;

-- One act, but for starts: what came of it. The tasks of those it is done to are locked, as far as that was foreseen.
CREATE FUNCTION {schema}.holdfast_act(
    p_now BIGINT, p_by TEXT, p_own {schema}.holdfast_record, p_deed {schema}.holdfast_deed,
    OUT answer TEXT, OUT touched {schema}.holdfast_touched
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_pid BYTEA := {schema}.holdfast_pid(p_own.workflow, p_own.instance_id);
    v_run BIGINT;
    v_to {schema}.holdfast_record;
    v_effect INTEGER;
BEGIN
    answer := 'done';
    IF p_deed.what = 'answer' THEN
        touched := {schema}.holdfast_reply(p_now, p_own.run, v_pid, p_deed);
        IF touched IS NULL THEN
            answer := 'missing';
        END IF;
        PERFORM pg_notify('{channel}', p_by);  -- who asked may be a client
        RETURN;
    END IF;
    v_run := {schema}.holdfast_lock(p_deed.workflow, p_deed.instance_id);
    SELECT * INTO v_to FROM {schema}.holdfast_record WHERE run = v_run;
    IF v_to.run IS NULL THEN
        answer := 'missing';
    ELSIF p_deed.what = 'watch' THEN
        touched := {schema}.holdfast_watch_run(p_now, p_own.run, v_to, p_deed.number::int);
    ELSIF p_deed.what = 'unwatch' THEN
        PERFORM {schema}.holdfast_unwatch(p_own.run, v_to.run, p_deed.number::int);
        IF p_deed.number & 2 <> 0 THEN
            PERFORM {schema}.holdfast_unwatch(v_to.run, p_own.run, 2);
        END IF;
    ELSIF v_to.epoch IS NULL THEN
        answer := 'ended';
    ELSIF p_deed.what = 'send' THEN
        v_effect := {schema}.holdfast_put(p_now, v_to, p_deed.type, p_deed.payload, p_deed.sender, p_deed.ask,
                                          p_deed.dedup, p_deed.token);
        IF v_effect > 1 THEN
            touched.woken := ARRAY[v_to.run];
            touched.work := v_effect = 3;
        END IF;
    ELSIF p_deed.what = 'cancel' THEN
        touched := {schema}.holdfast_ask_to_cancel(p_now, v_to.run, p_deed.payload, p_deed.number, v_pid);
    ELSE
        touched := {schema}.holdfast_end(p_now, p_by, v_to.run, 'terminated', NULL, NULL, p_deed.note, NULL, false);
        touched.ended := v_to.run || touched.ended;
    END IF;
    IF touched.woken IS NOT NULL THEN
        PERFORM pg_notify('{channel}', p_by);
    END IF;
END $$;

-- One that has ended already is told of at once.
CREATE FUNCTION {schema}.holdfast_watch_run(
    p_now BIGINT, p_own BIGINT, p_to {schema}.holdfast_record, p_watch INTEGER
) RETURNS {schema}.holdfast_touched LANGUAGE plpgsql AS $$
BEGIN
    IF p_to.epoch IS NULL THEN
        RETURN (SELECT {schema}.holdfast_post_one(p_now, p_own, '@exit', {schema}.holdfast_exit(p_watch, r),
                                                  {schema}.holdfast_pid(r.workflow, r.instance_id))
                  FROM {schema}.holdfast_run AS r WHERE r.id = p_to.run);
    END IF;
    UPDATE {schema}.holdfast_task SET bound = true WHERE run IN (p_own, p_to.run) AND unit = 0 AND NOT bound;
    INSERT INTO {schema}.holdfast_watch AS w (target, watcher, kind)
    SELECT a.target, a.watcher, bit_or(a.kind)
      FROM (VALUES (p_to.run, p_own, p_watch), (p_own, p_to.run, p_watch & 2)) AS a (target, watcher, kind)
     WHERE a.kind <> 0 GROUP BY a.target, a.watcher
    ON CONFLICT (target, watcher) DO UPDATE SET kind = w.kind | excluded.kind;
    RETURN NULL;
END $$;

CREATE FUNCTION {schema}.holdfast_unwatch(p_watcher BIGINT, p_target BIGINT, p_watch INTEGER) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.holdfast_watch SET kind = kind & ~p_watch WHERE target = p_target AND watcher = p_watcher;
    DELETE FROM {schema}.holdfast_watch WHERE target = p_target AND watcher = p_watcher AND kind = 0;
END $$;

-- Keeps an answer with the event it is for, and sends it to the run that asked, if it was one. NULL: no such event.
CREATE FUNCTION {schema}.holdfast_reply(p_now BIGINT, p_own BIGINT, p_pid BYTEA, p_deed {schema}.holdfast_deed)
RETURNS {schema}.holdfast_touched LANGUAGE plpgsql AS $$
DECLARE
    v_event {schema}.holdfast_event;
    v_asker BIGINT;
    v_touched {schema}.holdfast_touched;
BEGIN
    SELECT * INTO v_event FROM {schema}.holdfast_event WHERE run = p_own AND n = p_deed.number;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    v_touched.work := false;
    UPDATE {schema}.holdfast_event SET reply_ok = p_deed.ok, reply = p_deed.payload
     WHERE run = p_own AND n = p_deed.number AND reply_ok IS NULL;  -- what was answered once stays
    IF FOUND AND v_event.ask IS NOT NULL THEN
        v_asker := {schema}.holdfast_run_of(v_event.sender);
    END IF;
    IF v_asker IS NOT NULL THEN
        PERFORM 1 FROM {schema}.holdfast_task WHERE run = v_asker FOR NO KEY UPDATE;
        v_touched := {schema}.holdfast_post_one(
            p_now, v_asker, '@reply', '{"ask":'::bytea || {schema}.holdfast_json(v_event.ask)
                || CASE WHEN p_deed.ok THEN ',"ok":true,"value":'::bytea ELSE ',"ok":false,"value":'::bytea END
                || coalesce(p_deed.payload, 'null'::bytea) || '}'::bytea, p_pid);
    END IF;
    RETURN v_touched;
END $$;

-- ---------------------------------------------------------------------------------------------------- steering

CREATE FUNCTION {schema}.holdfast_pause(p_now BIGINT, p_by TEXT, p_workflow TEXT, p_instance_id TEXT)
RETURNS SETOF {schema}.holdfast_record LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT := {schema}.holdfast_lock(p_workflow, p_instance_id);
    v_rec {schema}.holdfast_record;
BEGIN
    SELECT * INTO v_rec FROM {schema}.holdfast_record WHERE run = v_run;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_rec.epoch IS NOT NULL AND v_rec.status <> 'paused' THEN
        IF v_rec.owner IS NULL THEN
            PERFORM {schema}.holdfast_set_paused(v_now, v_run, NULL);
        ELSE
            UPDATE {schema}.holdfast_task SET signal = signal | 2 WHERE run = v_run;
        END IF;
        PERFORM pg_notify('{channel}', p_by);
    END IF;
    RETURN NEXT v_rec;
END $$;

-- The run is paused; its task stays, for the sake of its epoch, held by nobody and never due.
CREATE FUNCTION {schema}.holdfast_set_paused(p_now BIGINT, p_run BIGINT, p_note BYTEA) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.holdfast_run SET status = 'paused', note = p_note, updated_at = p_now WHERE id = p_run;
    UPDATE {schema}.holdfast_task SET owner = NULL, lease_until = NULL, run_at = NULL, signal = 0 WHERE run = p_run;
END $$;

-- A paused run that was held only to be ended, and was not: it is as before.
CREATE FUNCTION {schema}.holdfast_still_paused(p_run BIGINT) RETURNS void LANGUAGE sql AS $$
    UPDATE {schema}.holdfast_task SET run_at = NULL
     WHERE run = p_run AND EXISTS (SELECT FROM {schema}.holdfast_run WHERE id = p_run AND status = 'paused')
$$;

CREATE FUNCTION {schema}.holdfast_resume(p_now BIGINT, p_by TEXT, p_workflow TEXT, p_instance_id TEXT)
RETURNS SETOF {schema}.holdfast_record LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT := {schema}.holdfast_lock(p_workflow, p_instance_id);
    v_rec {schema}.holdfast_record;
BEGIN
    SELECT * INTO v_rec FROM {schema}.holdfast_record WHERE run = v_run;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_rec.status = 'paused' THEN
        UPDATE {schema}.holdfast_run SET status = 'active', note = NULL, updated_at = v_now WHERE id = v_run;
        UPDATE {schema}.holdfast_task SET run_at = v_now, kind = 2, bucket = 0, losses = 0 WHERE run = v_run;
        PERFORM pg_notify('{channel}', p_by);
    ELSIF v_rec.signal & 2 <> 0 THEN
        UPDATE {schema}.holdfast_task SET signal = signal & ~2 WHERE run = v_run;
    END IF;
    RETURN NEXT v_rec;
END $$;

CREATE FUNCTION {schema}.holdfast_terminate(
    p_now BIGINT, p_by TEXT, p_workflow TEXT, p_instance_id TEXT, p_reason BYTEA
) RETURNS TABLE (ended BIGINT[], woken BIGINT[], work BOOLEAN, r {schema}.holdfast_record) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT := {schema}.holdfast_lock_to_end(p_workflow, p_instance_id);
    v_rec {schema}.holdfast_record;
    v_touched {schema}.holdfast_touched;
BEGIN
    SELECT * INTO v_rec FROM {schema}.holdfast_record WHERE run = v_run;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_rec.epoch IS NOT NULL THEN
        v_touched := {schema}.holdfast_end(v_now, p_by, v_run, 'terminated', NULL, NULL, p_reason, NULL, false);
        v_touched.ended := v_run || v_touched.ended;
    END IF;
    RETURN QUERY SELECT v_touched.ended, v_touched.woken, v_touched.work, v_rec;
END $$;

CREATE FUNCTION {schema}.holdfast_cancel(
    p_now BIGINT, p_by TEXT, p_workflow TEXT, p_instance_id TEXT, p_payload BYTEA, p_deadline_ms BIGINT
) RETURNS TABLE (ended BIGINT[], woken BIGINT[], work BOOLEAN, r {schema}.holdfast_record) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT := {schema}.holdfast_lock(p_workflow, p_instance_id);
    v_rec {schema}.holdfast_record;
    v_touched {schema}.holdfast_touched;
BEGIN
    SELECT * INTO v_rec FROM {schema}.holdfast_record WHERE run = v_run;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_rec.epoch IS NOT NULL THEN
        v_touched := {schema}.holdfast_ask_to_cancel(v_now, v_run, p_payload, p_deadline_ms, NULL);
        PERFORM pg_notify('{channel}', p_by);
    END IF;
    RETURN QUERY SELECT v_touched.ended, v_touched.woken, v_touched.work, v_rec;
END $$;

-- A restart whose answer got lost and is asked for again has made its run: p_token tells.
CREATE FUNCTION {schema}.holdfast_restart(
    p_now BIGINT, p_by TEXT, p_workflow TEXT, p_instance_id TEXT, p_reason BYTEA, p_expires_ms BIGINT, p_expiry TEXT,
    p_options BYTEA, p_token BIGINT
) RETURNS TABLE (ended BIGINT[], woken BIGINT[], work BOOLEAN, r {schema}.holdfast_record) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT := {schema}.holdfast_lock_to_end(p_workflow, p_instance_id);
    v_old {schema}.holdfast_run;
    v_touched {schema}.holdfast_touched;
BEGIN
    SELECT * INTO v_old FROM {schema}.holdfast_run WHERE id = v_run;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_old.made_by IS DISTINCT FROM p_token THEN
        v_run := {schema}.holdfast_make_next(
            v_now, p_by, v_old.id, p_token, v_old.params, v_now, 1, v_now + p_expires_ms, p_expiry, p_options);
        IF v_old.completed_at IS NULL THEN
            v_touched := {schema}.holdfast_end(
                v_now, p_by, v_old.id, 'terminated', NULL, NULL, p_reason, v_run, false);
            v_touched.ended := v_old.id || v_touched.ended;
        END IF;
    END IF;
    RETURN QUERY SELECT v_touched.ended, v_touched.woken, true, rec FROM {schema}.holdfast_record AS rec WHERE rec.run = v_run;
END $$;

-- ---------------------------------------------------------------------------------------------------- leases

-- Mail signals are cleared by being read, but nobody waits for a lock here: a heartbeat must not be late.
CREATE FUNCTION {schema}.holdfast_signals(p_owner TEXT, p_all BOOLEAN)
RETURNS TABLE (run BIGINT, unit BIGINT, epoch BIGINT, signal INTEGER) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_mailed BIGINT[];
BEGIN
    WITH mailed AS (
        SELECT t.run, t.unit FROM {schema}.holdfast_task AS t
         WHERE t.owner = p_owner AND t.signal <> 0 AND t.signal & 1 <> 0 FOR NO KEY UPDATE SKIP LOCKED
    ), cleared AS (
        UPDATE {schema}.holdfast_task AS t SET signal = t.signal & ~1
          FROM mailed AS m WHERE t.run = m.run AND t.unit = m.unit RETURNING t.run
    )
    SELECT array_agg(c.run) INTO v_mailed FROM cleared AS c;
    IF p_all THEN
        RETURN QUERY
            SELECT t.run, t.unit, t.epoch, t.signal | CASE WHEN t.run = ANY (v_mailed) THEN 1 ELSE 0 END
              FROM {schema}.holdfast_task AS t WHERE t.owner = p_owner;
    ELSE
        RETURN QUERY
            SELECT t.run, t.unit, t.epoch, t.signal FROM {schema}.holdfast_task AS t
             WHERE t.owner = p_owner AND t.signal <> 0 AND t.run <> ALL (coalesce(v_mailed, '{}'))
            UNION ALL
            SELECT t.run, t.unit, t.epoch, t.signal | 1 FROM {schema}.holdfast_task AS t
             WHERE t.run = ANY (v_mailed) AND t.owner = p_owner;
    END IF;
END $$;

CREATE FUNCTION {schema}.holdfast_heartbeat(p_now BIGINT, p_owner TEXT, p_lease_ms BIGINT)
RETURNS TABLE (now BIGINT, run BIGINT, unit BIGINT, epoch BIGINT, signal INTEGER) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
BEGIN
    INSERT INTO {schema}.holdfast_worker AS w (id, started_at, seen_at, lease_until)
    VALUES (p_owner, v_now, v_now, v_now + p_lease_ms)
    ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, lease_until = excluded.lease_until;
    RETURN QUERY SELECT v_now, s.* FROM {schema}.holdfast_signals(p_owner, true) AS s;
    RETURN QUERY SELECT v_now, NULL::bigint, NULL::bigint, NULL::bigint, NULL::int;
END $$;

-- Frees tasks whose lease ran out: neither their claim nor their holder's last heartbeat is recent enough. Owners are
-- few and tasks many: one seek per owner, and then only what has run out.
CREATE FUNCTION {schema}.holdfast_reap(p_now BIGINT, p_by TEXT, p_max_losses INTEGER, p_suspect INTEGER)
RETURNS TABLE (run BIGINT, unit BIGINT, losses INTEGER, parked BOOLEAN) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_owner TEXT := '';
    v_one RECORD;
    v_told BOOLEAN := false;
BEGIN
    LOOP
        SELECT t.owner INTO v_owner FROM {schema}.holdfast_task AS t
         WHERE t.owner IS NOT NULL AND t.owner > v_owner ORDER BY t.owner LIMIT 1;
        EXIT WHEN NOT FOUND;
        PERFORM 1 FROM {schema}.holdfast_worker WHERE id = v_owner AND lease_until > v_now;
        CONTINUE WHEN FOUND;
        FOR v_one IN
            SELECT t.run, t.unit, t.losses + 1 AS losses, t.signal FROM {schema}.holdfast_task AS t
             WHERE t.owner = v_owner AND t.lease_until <= v_now
             ORDER BY t.owner, t.lease_until FOR NO KEY UPDATE SKIP LOCKED
        LOOP
            v_told := true;
            UPDATE {schema}.holdfast_task AS t
               SET owner = NULL, lease_until = NULL, run_at = v_now, kind = 1, losses = v_one.losses, lost = true,
                   bucket = CASE WHEN v_one.losses >= p_suspect THEN 2 ELSE 0 END, signal = 0
             WHERE t.run = v_one.run AND t.unit = v_one.unit;
            IF v_one.losses >= p_max_losses THEN
                PERFORM {schema}.holdfast_set_paused(v_now, v_one.run, convert_to('parked: its worker died '
                    || CASE WHEN v_one.losses = 1 THEN 'once' ELSE v_one.losses || ' times in a row' END
                    || '; resume to try again', 'UTF8'));
            ELSIF v_one.signal & 2 <> 0 THEN  -- asked for while it was held, and nobody holds it now
                PERFORM {schema}.holdfast_set_paused(v_now, v_one.run, NULL);
            ELSE
                PERFORM {schema}.holdfast_still_paused(v_one.run);
            END IF;
            RETURN QUERY SELECT v_one.run, v_one.unit, v_one.losses, v_one.losses >= p_max_losses;
        END LOOP;
    END LOOP;
    IF v_told THEN
        PERFORM pg_notify('{channel}', p_by);
    END IF;
END $$;

CREATE FUNCTION {schema}.holdfast_release(
    p_now BIGINT, p_by TEXT, p_run BIGINT[], p_unit BIGINT[], p_owner TEXT[], p_epoch BIGINT[]
) RETURNS BIGINT LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_one RECORD;
    v_count BIGINT := 0;
BEGIN
    FOR v_one IN
        SELECT DISTINCT a.run, a.unit, a.owner, a.epoch
          FROM unnest(p_run, p_unit, p_owner, p_epoch) AS a (run, unit, owner, epoch) ORDER BY a.run
    LOOP
        PERFORM 1 FROM {schema}.holdfast_task AS t
          WHERE t.run = v_one.run AND t.unit = v_one.unit AND (t.owner = v_one.owner) IS TRUE AND t.epoch = v_one.epoch
            FOR NO KEY UPDATE;
        CONTINUE WHEN NOT FOUND;
        v_count := v_count + 1;
        IF EXISTS (SELECT FROM {schema}.holdfast_task AS t
                    WHERE t.run = v_one.run AND t.unit = v_one.unit AND t.signal & 2 <> 0) THEN
            PERFORM {schema}.holdfast_set_paused(v_now, v_one.run, NULL);
        ELSE
            -- A loss that no commit has followed yet is still news to the next holder.
            UPDATE {schema}.holdfast_task AS t
               SET owner = NULL, lease_until = NULL, run_at = v_now, lost = t.losses > 0, signal = 0
             WHERE t.run = v_one.run AND t.unit = v_one.unit;
            PERFORM {schema}.holdfast_still_paused(v_one.run);
        END IF;
    END LOOP;
    IF v_count > 0 THEN
        PERFORM pg_notify('{channel}', p_by);
    END IF;
    RETURN v_count;
END $$;

-- ---------------------------------------------------------------------------------------------------- lists

-- Current runs, newest instance first, of one workflow or (NULL) of all: every workflow by one seek, a page of each by
-- one range of an index, and the newest of those. p_key and what goes with it: conditions that all hold.
CREATE FUNCTION {schema}.holdfast_list(
    p_workflow TEXT, p_status TEXT, p_before BIGINT, p_limit BIGINT, p_key BYTEA[], p_op TEXT[], p_text BYTEA[],
    p_number NUMERIC[]
) RETURNS SETOF {schema}.holdfast_record LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_workflows TEXT[] := ARRAY[p_workflow];
    v_runs BIGINT[];
BEGIN
    IF p_workflow IS NULL THEN
        WITH RECURSIVE known (workflow) AS (
            (SELECT workflow FROM {schema}.holdfast_run WHERE current ORDER BY workflow LIMIT 1)
            UNION ALL
            SELECT (SELECT r.workflow FROM {schema}.holdfast_run AS r WHERE r.current AND r.workflow > k.workflow
                     ORDER BY r.workflow LIMIT 1)
              FROM known AS k WHERE k.workflow IS NOT NULL
        )
        SELECT array_agg(workflow) INTO v_workflows FROM known WHERE workflow IS NOT NULL;
    END IF;
    IF cardinality(p_key) > 0 THEN
        v_runs := {schema}.holdfast_search(v_workflows, p_status, p_before, p_limit, p_key, p_op, p_text, p_number);
    ELSIF p_status IS NULL THEN
        SELECT array_agg(id) INTO v_runs
          FROM (SELECT page.id
                  FROM unnest(v_workflows) AS w (name)
                 CROSS JOIN LATERAL (SELECT r.id, r.instance FROM {schema}.holdfast_run AS r
                                      WHERE r.current AND r.workflow = w.name AND r.instance < p_before
                                      ORDER BY r.instance DESC LIMIT p_limit) AS page
                 ORDER BY page.instance DESC LIMIT p_limit) AS newest;
    ELSE
        -- Equal to the status, and older; written so that the index without the status is of no use for it.
        SELECT array_agg(id) INTO v_runs
          FROM (SELECT page.id
                  FROM unnest(v_workflows) AS w (name)
                 CROSS JOIN LATERAL (SELECT r.id, r.instance FROM {schema}.holdfast_run AS r
                                      WHERE r.current AND r.workflow = w.name AND r.status >= p_status
                                        AND (r.status, r.instance) < (p_status, p_before)
                                      ORDER BY r.status DESC, r.instance DESC LIMIT p_limit) AS page
                 ORDER BY page.instance DESC LIMIT p_limit) AS newest;
    END IF;
    RETURN QUERY
        SELECT rec.* FROM unnest(v_runs) AS a (id) JOIN {schema}.holdfast_record AS rec ON rec.run = a.id
         ORDER BY rec.instance DESC;
END $$;

-- Finds runs by one of the conditions, and looks at each whether the others hold. One for equality is the best: the
-- index has its instances in the order of the list, so only a page of them is read. Of another, all in its range are.
CREATE FUNCTION {schema}.holdfast_search(
    p_workflows TEXT[], p_status TEXT, p_before BIGINT, p_limit BIGINT, p_key BYTEA[], p_op TEXT[], p_text BYTEA[],
    p_number NUMERIC[]
) RETURNS BIGINT[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_by INTEGER := coalesce(array_position(p_op, '='), 1);
    v_head BYTEA := substring(p_text[v_by] FROM 1 FOR 1000);
    v_low BYTEA := CASE WHEN p_op[v_by] IN ('<', '<=') THEN '' ELSE v_head END;
    v_high BYTEA := CASE WHEN p_op[v_by] IN ('>', '>=') THEN '\xff' ELSE v_head END;  -- no text begins like this
    v_least NUMERIC;
    v_most NUMERIC;
    v_match TEXT;
    v_runs BIGINT[];
BEGIN
    -- A run has several texts under one key, perhaps, but only one number: conditions for it make one range.
    SELECT coalesce(max(number) FILTER (WHERE op IN ('=', '>', '>=')), '-Infinity'),
           coalesce(min(number) FILTER (WHERE op IN ('=', '<', '<=')), 'Infinity')
      INTO v_least, v_most
      FROM unnest(p_key, p_op, p_number) AS c (key, op, number) WHERE c.key = p_key[v_by] AND c.number IS NOT NULL;
    v_match := CASE WHEN p_text[v_by] IS NULL THEN 'number' ELSE 'head' END;
    v_match := v_match || ' IS NOT NULL AND ' || v_match || CASE
        WHEN p_op[v_by] = '=' AND p_text[v_by] IS NULL THEN ' = $8'
        WHEN p_op[v_by] = '=' THEN ' = $6'
        WHEN p_text[v_by] IS NULL THEN ' BETWEEN $8 AND $9'
        ELSE ' BETWEEN $6 AND $7' END;
    IF p_op[v_by] <> '=' THEN  -- or it would walk through all there are, for the sake of their order
        v_match := v_match || ' OFFSET 0';
    END IF;
    EXECUTE format($query$
        SELECT array_agg(id)
          FROM (SELECT page.id
                  FROM unnest($1) AS w (name)
                 CROSS JOIN LATERAL (
                       SELECT r.id, t.instance
                         FROM (SELECT DISTINCT instance
                                 FROM (SELECT instance FROM {schema}.holdfast_term
                                        WHERE workflow = w.name AND key = $5 AND instance < $3 AND %s) AS found
                                ORDER BY instance DESC OFFSET 0) AS t
                        CROSS JOIN LATERAL (
                              SELECT id, status FROM {schema}.holdfast_run
                               WHERE current AND workflow = w.name AND instance = t.instance OFFSET 0) AS r
                        WHERE ($2 IS NULL OR r.status = $2)
                          AND NOT EXISTS (
                              SELECT FROM unnest($10, $11, $12, $13) AS c (key, op, text, number)
                               WHERE NOT EXISTS (
                                     SELECT FROM {schema}.holdfast_term AS x
                                      WHERE x.instance = t.instance AND x.key = c.key AND CASE c.op
                                            WHEN '=' THEN x.text = c.text OR x.number = c.number
                                            WHEN '<' THEN x.text < c.text OR x.number < c.number
                                            WHEN '<=' THEN x.text <= c.text OR x.number <= c.number
                                            WHEN '>' THEN x.text > c.text OR x.number > c.number
                                            ELSE x.text >= c.text OR x.number >= c.number END))
                        ORDER BY t.instance DESC LIMIT $4) AS page
                 ORDER BY page.instance DESC LIMIT $4) AS newest
        $query$, v_match)
      INTO v_runs
     USING p_workflows, p_status, p_before, p_limit, p_key[v_by], v_low, v_high, v_least, v_most, p_key, p_op, p_text,
           p_number;
    RETURN v_runs;
END $$;

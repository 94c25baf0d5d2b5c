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
    UNIQUE (workflow, instance_id, number)
) WITH (fillfactor = 85);

CREATE INDEX holdfast_run_list ON {schema}.holdfast_run (workflow, instance) WHERE current;
CREATE INDEX holdfast_run_status ON {schema}.holdfast_run (workflow, status, instance) WHERE current;

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
    PRIMARY KEY (run, unit)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,
        autovacuum_analyze_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX holdfast_task_due ON {schema}.holdfast_task (queue, workflow, bucket, priority, run_at, run)
    WHERE owner IS NULL AND run_at IS NOT NULL;
CREATE INDEX holdfast_task_lease ON {schema}.holdfast_task (owner, lease_until) WHERE owner IS NOT NULL;
CREATE INDEX holdfast_task_signal ON {schema}.holdfast_task (owner) WHERE signal <> 0;

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
    PRIMARY KEY (run, state, key, n)
);

CREATE TABLE {schema}.holdfast_event (
    run           BIGINT  NOT NULL,
    n             BIGINT  NOT NULL,
    type          TEXT    NOT NULL,
    payload       BYTEA,
    created_at    BIGINT  NOT NULL,
    sender        BYTEA,
    delivered_at  BIGINT,
    consumed_by   BYTEA,
    dedup         BYTEA   NOT NULL,  -- the sender's key, or one that no text has, made for the call
    sent_by       BIGINT  NOT NULL,  -- the call that sent it: asked when its answer got lost
    PRIMARY KEY (run, n)
);

CREATE INDEX holdfast_event_undelivered ON {schema}.holdfast_event (run, n) WHERE delivered_at IS NULL;
CREATE UNIQUE INDEX holdfast_event_dedup ON {schema}.holdfast_event (run, dedup);

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
    PRIMARY KEY (store, line)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

-- A run with what its task says: the columns of RunRecord in their order, then what the store itself looks at.
CREATE VIEW {schema}.holdfast_record AS
SELECT r.id AS run, r.workflow, r.instance_id, r.number, r.kind, r.status, r.params, r.output, r.error, r.queue,
       r.priority, r.created_at, r.updated_at, r.started_at, r.completed_at, r.instance, r.seed, r.note,
       t.run_at, t.owner, t.losses, t.signal, t.epoch, t.topics, r.current
  FROM {schema}.holdfast_run AS r
  LEFT JOIN {schema}.holdfast_task AS t ON t.run = r.id AND t.unit = 0;

-- Why functions and not statements: each is one round trip and one transaction, and each statement inside sees what
-- was committed before *it* began. That is what lets a commit that waited for a lock see the event whose sender held
-- it; the parts of one big statement would all look at the past. Their settings keep the planner off plans that are
-- right only while a table is small: everything is found by an index, row by row.
--
-- The order of locks, everywhere: tasks by their run, then runs. Whoever changes a run that has not ended locks its task.

-- The time of a call (p_now where a test has a clock), in a transaction that is durable once it has ended.
CREATE FUNCTION {schema}.holdfast_begin(p_now BIGINT) RETURNS BIGINT LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    RETURN coalesce(p_now, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
END $$;

CREATE FUNCTION {schema}.holdfast_current(p_workflow TEXT, p_instance_id TEXT) RETURNS BIGINT LANGUAGE sql STABLE AS $$
    SELECT id FROM {schema}.holdfast_run
     WHERE workflow = p_workflow AND instance_id = p_instance_id ORDER BY number DESC LIMIT 1
$$;

-- The current run, with its task and itself locked: it stays the current one until the transaction ends.
CREATE FUNCTION {schema}.holdfast_lock(p_workflow TEXT, p_instance_id TEXT) RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    v_run BIGINT := {schema}.holdfast_current(p_workflow, p_instance_id);
    v_locked BIGINT;
BEGIN
    WHILE v_run IS DISTINCT FROM v_locked LOOP
        v_locked := v_run;
        PERFORM 1 FROM {schema}.holdfast_task WHERE run = v_run ORDER BY unit FOR NO KEY UPDATE;
        PERFORM 1 FROM {schema}.holdfast_run WHERE id = v_run FOR NO KEY UPDATE;
        v_run := {schema}.holdfast_current(p_workflow, p_instance_id);
    END LOOP;
    RETURN v_run;
END $$;

CREATE FUNCTION {schema}.holdfast_create(
    p_now BIGINT, p_by TEXT, p_workflow TEXT[], p_instance_id TEXT[], p_kind TEXT[], p_params BYTEA[], p_queue TEXT[],
    p_priority BIGINT[], p_delay_ms BIGINT[], p_seed BIGINT[], p_owner TEXT[], p_lease_ms BIGINT[], p_token BIGINT[]
) RETURNS TABLE (ord BIGINT, run BIGINT, created_at BIGINT) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_ids BIGINT[];
    v_made BIGINT[];
    v_all BOOLEAN;
    v_free BIGINT;
BEGIN
    SELECT array_agg(nextval('{schema}.holdfast_run_id')) INTO v_ids FROM generate_series(1, cardinality(p_workflow));
    -- In the order of their names, so that two batches do not wait for each other.
    WITH made AS (
        INSERT INTO {schema}.holdfast_run (id, instance, workflow, instance_id, number, current, kind, status, params,
                                           queue, priority, seed, created_at, updated_at, made_by)
        SELECT v_ids[a.ord], v_ids[a.ord], a.workflow, a.instance_id, 0, true, a.kind, 'active', a.params, a.queue,
               a.priority, a.seed, v_now, v_now, a.token
          FROM unnest(p_workflow, p_instance_id, p_kind, p_params, p_queue, p_priority, p_seed, p_token)
               WITH ORDINALITY AS a (workflow, instance_id, kind, params, queue, priority, seed, token, ord)
         ORDER BY a.workflow COLLATE "C", a.instance_id COLLATE "C", a.ord
        ON CONFLICT (workflow, instance_id, number) DO NOTHING
        RETURNING id
    )
    SELECT array_agg(id) INTO v_made FROM made;
    v_all := coalesce(cardinality(v_made), 0) = cardinality(p_workflow);
    WITH tasks AS (
        INSERT INTO {schema}.holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, owner,
                                            lease_until, epoch, losses, lost, signal, topics)
        SELECT a.id, 0, a.workflow, a.queue, 1, 3, a.priority, v_now + a.delay_ms, a.owner,
               CASE WHEN a.owner IS NOT NULL THEN v_now + a.lease_ms END,
               CASE WHEN a.owner IS NULL THEN 0 ELSE 1 END, 0, false, 0, ''
          FROM unnest(v_ids, p_workflow, p_queue, p_priority, p_delay_ms, p_owner, p_lease_ms)
               AS a (id, workflow, queue, priority, delay_ms, owner, lease_ms)
         WHERE v_all OR a.id = ANY (v_made)
        RETURNING owner
    )
    SELECT count(*) FILTER (WHERE owner IS NULL) INTO v_free FROM tasks;
    IF v_free > 0 THEN
        PERFORM pg_notify('{channel}', p_by);
    END IF;
    IF v_all THEN
        RETURN QUERY SELECT a.ord, a.id, v_now FROM unnest(v_ids) WITH ORDINALITY AS a (id, ord);
        RETURN;
    END IF;
    RETURN QUERY
        SELECT a.ord, r.id, r.created_at
          FROM unnest(p_workflow, p_instance_id, p_token) WITH ORDINALITY AS a (workflow, instance_id, token, ord)
          JOIN {schema}.holdfast_run AS r
            ON r.workflow = a.workflow AND r.instance_id = a.instance_id AND r.number = 0 AND r.made_by = a.token;
END $$;

-- p_dedup has a key for each: the sender's own, or one made for this call.
CREATE FUNCTION {schema}.holdfast_send(
    p_now BIGINT, p_by TEXT, p_workflow TEXT[], p_instance_id TEXT[], p_type TEXT[], p_payload BYTEA[],
    p_sender BYTEA[], p_dedup BYTEA[], p_token BIGINT[]
) RETURNS TABLE (ord BIGINT, accepted BOOLEAN, duplicate BOOLEAN, woken BOOLEAN, r {schema}.holdfast_record)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT;
    v_rec {schema}.holdfast_record;
    v_dup BOOLEAN;
    v_woken BOOLEAN;
    v_told BOOLEAN := false;
    v_one RECORD;
BEGIN
    IF cardinality(p_workflow) > 1 THEN
        PERFORM 1 FROM {schema}.holdfast_task AS t
          WHERE t.run = ANY (ARRAY(SELECT {schema}.holdfast_current(a.workflow, a.instance_id)
                                     FROM unnest(p_workflow, p_instance_id) AS a (workflow, instance_id)))
          ORDER BY t.run, t.unit FOR NO KEY UPDATE;
    END IF;
    FOR v_one IN
        SELECT * FROM unnest(p_workflow, p_instance_id, p_type, p_payload, p_sender, p_dedup, p_token)
            WITH ORDINALITY AS a (workflow, instance_id, type, payload, sender, dedup, token, ord)
    LOOP
        v_run := {schema}.holdfast_lock(v_one.workflow, v_one.instance_id);
        v_rec := NULL;
        v_dup := false;
        v_woken := false;
        IF v_run IS NOT NULL THEN
            SELECT * INTO v_rec FROM {schema}.holdfast_record WHERE run = v_run;
        END IF;
        IF v_rec.run IS NOT NULL AND v_rec.epoch IS NOT NULL THEN  -- it has a task, so it has not ended
            INSERT INTO {schema}.holdfast_event (run, n, type, payload, created_at, sender, dedup, sent_by)
            VALUES (v_run, 1 + coalesce((SELECT max(n) FROM {schema}.holdfast_event WHERE run = v_run), 0),
                    v_one.type, v_one.payload, v_now, v_one.sender, v_one.dedup, v_one.token)
            ON CONFLICT (run, dedup) DO NOTHING;
            v_dup := NOT FOUND;
            IF v_dup AND EXISTS (SELECT FROM {schema}.holdfast_event
                                  WHERE run = v_run AND dedup = v_one.dedup AND sent_by = v_one.token) THEN
                v_dup := false;  -- this very call has been here before
                v_woken := true;
            ELSIF NOT v_dup AND v_rec.owner IS NOT NULL THEN
                UPDATE {schema}.holdfast_task SET signal = signal | 1 WHERE run = v_run AND unit = 0;
                v_woken := true;
            ELSIF NOT v_dup AND v_rec.status <> 'paused'
                  AND (v_rec.topics = ' * ' OR position(' ' || v_one.type || ' ' IN v_rec.topics) > 0) THEN
                v_woken := true;
                IF v_rec.run_at IS NULL OR v_rec.run_at > v_now THEN
                    UPDATE {schema}.holdfast_task SET run_at = v_now, kind = 0, bucket = 0
                     WHERE run = v_run AND unit = 0;
                END IF;
            END IF;
            v_told := v_told OR v_woken;
            RETURN QUERY SELECT v_one.ord, true, v_dup, v_woken, v_rec;
        ELSE
            RETURN QUERY SELECT v_one.ord, EXISTS (
                SELECT FROM {schema}.holdfast_run AS b
                  JOIN {schema}.holdfast_event AS e ON e.run = b.id AND e.dedup = v_one.dedup
                 WHERE b.workflow = v_one.workflow AND b.instance_id = v_one.instance_id AND e.sent_by = v_one.token
            ), false, false, v_rec;
        END IF;
    END LOOP;
    IF v_told THEN
        PERFORM pg_notify('{channel}', p_by);
    END IF;
END $$;

-- Takes due tasks. p_doubtful: earlier claims of this owner whose answers got lost; what they took is answered now.
-- The last row has no run; it says when to ask again.
CREATE FUNCTION {schema}.holdfast_claim(
    p_now BIGINT, p_owner TEXT, p_lease_ms BIGINT, p_limit BIGINT, p_queues TEXT[], p_workflows TEXT[],
    p_buckets INTEGER[], p_token BIGINT, p_doubtful BIGINT[]
) RETURNS TABLE (ord BIGINT, now BIGINT, next_due BIGINT, kind INTEGER, lost BOOLEAN, mail_n BIGINT[],
                 mail_type TEXT[], mail_payload BYTEA[], mail_at BIGINT[], mail_sender BYTEA[],
                 r {schema}.holdfast_record)
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
BEGIN
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
            SELECT a.ord, v_now, NULL::bigint, t.kind, a.lost, m.n, m.type, m.payload, m.at, m.sender, rec
              FROM unnest(v_runs, v_lost) WITH ORDINALITY AS a (run, lost, ord)
              JOIN {schema}.holdfast_task AS t ON t.run = a.run AND t.unit = 0
              JOIN {schema}.holdfast_record AS rec ON rec.run = a.run
             CROSS JOIN LATERAL (
                   SELECT array_agg(e.n ORDER BY e.n) AS n, array_agg(e.type ORDER BY e.n) AS type,
                          array_agg(e.payload ORDER BY e.n) AS payload, array_agg(e.created_at ORDER BY e.n) AS at,
                          array_agg(e.sender ORDER BY e.n) AS sender
                     FROM {schema}.holdfast_event AS e WHERE e.run = a.run AND e.delivered_at IS NULL) AS m
             ORDER BY a.ord;
    END IF;
    RETURN QUERY
        SELECT NULL::bigint, v_now, min(run_at), NULL::int, NULL::boolean, NULL::bigint[], NULL::text[],
               NULL::bytea[], NULL::bigint[], NULL::bytea[], NULL::{schema}.holdfast_record
          FROM {schema}.holdfast_lanes(v_now, p_limit, p_queues, p_workflows,
                                       CASE WHEN v_suspect THEN array_remove(p_buckets, 2) ELSE p_buckets END);
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
) RETURNS TABLE (verdicts INTEGER[], signals INTEGER[], due BOOLEAN[]) LANGUAGE plpgsql
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
    v_told BOOLEAN := false;
    v_count BIGINT;
    v_receipt {schema}.holdfast_receipt;
BEGIN
    -- The fence: the task as it is now, locked, and only if run, unit, owner and epoch are those of the claim.
    -- IS TRUE, because the index by owner would find all that the owner holds, for each of them.
    FOR v_held IN
        SELECT a.ord, a.in_flight, t.signal, t.losses
          FROM unnest(p_c_run, p_c_unit, p_c_owner, p_c_epoch, p_c_in_flight)
               WITH ORDINALITY AS a (run, unit, owner, epoch, in_flight, ord)
          JOIN {schema}.holdfast_task AS t
            ON t.run = a.run AND t.unit = a.unit AND (t.owner = a.owner) IS TRUE AND t.epoch = a.epoch
         ORDER BY a.run FOR NO KEY UPDATE OF t
    LOOP
        v_signal[v_held.ord] := v_held.signal;
        v_losses[v_held.ord] := v_held.losses;
        v_state[v_held.ord] := CASE WHEN v_held.signal & 2 = 0 THEN 3 WHEN v_held.in_flight = 0 THEN 2 ELSE 1 END;
    END LOOP;

    -- Only now, with the locks: an earlier try of this very call may have been under way until a moment ago.
    SELECT * INTO v_receipt FROM {schema}.holdfast_receipt WHERE store = p_by AND line = p_line AND n >= p_n;
    IF FOUND THEN
        IF v_receipt.n > p_n THEN
            RAISE EXCEPTION 'a late copy of a commit that was answered long ago' USING ERRCODE = 'HF002';
        END IF;
        RETURN QUERY SELECT v_receipt.verdicts, v_receipt.signals, v_receipt.due;
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
        SELECT array_agg(a.state = 3 AND a.next = 3 AND a.topics <> '' AND EXISTS (
                   SELECT FROM {schema}.holdfast_event AS e
                    WHERE e.run = a.run AND e.n > a.seen AND e.delivered_at IS NULL
                      AND (a.topics = ' * ' OR position(' ' || e.type || ' ' IN a.topics) > 0)) ORDER BY a.ord)
          INTO v_due
          FROM unnest(v_state, p_c_next, p_c_run, p_c_seen, p_c_topics)
               WITH ORDINALITY AS a (state, next, run, seen, topics, ord);

        UPDATE {schema}.holdfast_run AS r
           SET started_at = coalesce(r.started_at, a.started_at), updated_at = v_now,
               status = CASE WHEN a.what IN (1, 3) THEN a.status WHEN a.what = 2 THEN 'paused' ELSE r.status END,
               note = CASE a.what WHEN 1 THEN NULL WHEN 2 THEN a.note ELSE r.note END,
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
        INSERT INTO {schema}.holdfast_receipt (store, line, n, at, verdicts, signals, due)
        VALUES (p_by, p_line, p_n, v_now, v_state, v_signal, v_due)
        ON CONFLICT (store, line) DO UPDATE
           SET n = excluded.n, at = excluded.at, verdicts = excluded.verdicts, signals = excluded.signals,
               due = excluded.due;
    END IF;
    RETURN QUERY SELECT v_state, v_signal, v_due;
END $$;

-- The most common commit: one turn with one result, which goes on or ends the run. Half the time of the general one,
-- which has to take fifty arrays apart. False, and nothing is done, if there is more to it: a signal, losses, an earlier
-- try.
CREATE FUNCTION {schema}.holdfast_commit_one(
    p_now BIGINT, p_by TEXT, p_line INTEGER, p_n BIGINT, p_run BIGINT, p_unit BIGINT, p_owner TEXT, p_epoch BIGINT,
    p_state INTEGER, p_key BYTEA, p_fact_n BIGINT, p_kind TEXT, p_at BIGINT, p_started_at BIGINT, p_seq BIGINT,
    p_ok BOOLEAN, p_value BYTEA, p_name BYTEA, p_attempts BIGINT, p_max_attempts BIGINT, p_timeout_ms BIGINT,
    p_wake_at BIGINT, p_event_type TEXT, p_event BIGINT,
    p_run_started_at BIGINT, p_end TEXT, p_output BYTEA, p_error BYTEA
) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
BEGIN
    PERFORM FROM {schema}.holdfast_task
      WHERE run = p_run AND unit = p_unit AND (owner = p_owner) IS TRUE AND epoch = p_epoch AND signal = 0 AND losses = 0
        FOR NO KEY UPDATE;
    IF NOT FOUND OR EXISTS (SELECT FROM {schema}.holdfast_receipt WHERE store = p_by AND line = p_line AND n >= p_n) THEN
        RETURN false;
    END IF;
    INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, value, name, attempts,
                                        max_attempts, timeout_ms, wake_at, event_type, event)
    VALUES (p_run, p_state, p_key, p_fact_n, p_kind, p_at, p_started_at, p_seq, p_ok, p_value, p_name, p_attempts,
            p_max_attempts, p_timeout_ms, p_wake_at, p_event_type, p_event);
    IF p_end IS NOT NULL THEN
        DELETE FROM {schema}.holdfast_task WHERE run = p_run;
        UPDATE {schema}.holdfast_run
           SET started_at = coalesce(started_at, p_run_started_at), updated_at = v_now, status = p_end, note = NULL,
               output = p_output, error = p_error, completed_at = v_now
         WHERE id = p_run;
        PERFORM pg_notify('{channel}', p_by);
    ELSIF p_run_started_at IS NOT NULL THEN
        UPDATE {schema}.holdfast_run SET started_at = p_run_started_at, updated_at = v_now
         WHERE id = p_run AND started_at IS NULL;
    END IF;
    INSERT INTO {schema}.holdfast_receipt (store, line, n, at, verdicts, signals, due)
    VALUES (p_by, p_line, p_n, v_now, '{3}', '{0}', '{f}')
    ON CONFLICT (store, line) DO UPDATE
       SET n = excluded.n, at = excluded.at, verdicts = excluded.verdicts, signals = excluded.signals,
           due = excluded.due;
    RETURN true;
END $$;

CREATE FUNCTION {schema}.holdfast_pause(p_now BIGINT, p_by TEXT, p_workflow TEXT, p_instance_id TEXT)
RETURNS SETOF {schema}.holdfast_record LANGUAGE plpgsql AS $$
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

CREATE FUNCTION {schema}.holdfast_resume(p_now BIGINT, p_by TEXT, p_workflow TEXT, p_instance_id TEXT)
RETURNS SETOF {schema}.holdfast_record LANGUAGE plpgsql AS $$
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

CREATE FUNCTION {schema}.holdfast_end(p_now BIGINT, p_by TEXT, p_run BIGINT, p_reason BYTEA) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.holdfast_run
       SET status = 'terminated', note = p_reason, updated_at = p_now, completed_at = p_now WHERE id = p_run;
    DELETE FROM {schema}.holdfast_task WHERE run = p_run;
    PERFORM pg_notify('{channel}', p_by);
END $$;

CREATE FUNCTION {schema}.holdfast_terminate(
    p_now BIGINT, p_by TEXT, p_workflow TEXT, p_instance_id TEXT, p_reason BYTEA
) RETURNS SETOF {schema}.holdfast_record LANGUAGE plpgsql AS $$
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT := {schema}.holdfast_lock(p_workflow, p_instance_id);
    v_rec {schema}.holdfast_record;
BEGIN
    SELECT * INTO v_rec FROM {schema}.holdfast_record WHERE run = v_run;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_rec.epoch IS NOT NULL THEN
        PERFORM {schema}.holdfast_end(v_now, p_by, v_run, p_reason);
    END IF;
    RETURN NEXT v_rec;
END $$;

-- A restart whose answer got lost and is asked for again has made its run: p_token tells.
CREATE FUNCTION {schema}.holdfast_restart(
    p_now BIGINT, p_by TEXT, p_workflow TEXT, p_instance_id TEXT, p_reason BYTEA, p_token BIGINT
) RETURNS SETOF {schema}.holdfast_record LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT := {schema}.holdfast_lock(p_workflow, p_instance_id);
    v_new BIGINT;
    v_old {schema}.holdfast_run;
BEGIN
    SELECT * INTO v_old FROM {schema}.holdfast_run WHERE id = v_run;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_old.made_by IS DISTINCT FROM p_token THEN
        IF v_old.completed_at IS NULL THEN
            PERFORM {schema}.holdfast_end(v_now, p_by, v_run, p_reason);
        END IF;
        UPDATE {schema}.holdfast_run SET current = false WHERE id = v_run;
        v_new := nextval('{schema}.holdfast_run_id');
        INSERT INTO {schema}.holdfast_run (id, instance, workflow, instance_id, number, current, kind, status, params,
                                           queue, priority, seed, created_at, updated_at, made_by)
        SELECT v_new, v_old.instance, v_old.workflow, v_old.instance_id, v_old.number + 1, true, v_old.kind, 'active',
               v_old.params, v_old.queue, v_old.priority, v_old.seed, v_old.created_at, v_now, p_token;
        INSERT INTO {schema}.holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, epoch, losses,
                                            lost, signal, topics)
        VALUES (v_new, 0, v_old.workflow, v_old.queue, 1, 3, v_old.priority, v_now, 0, 0, false, 0, '');
        PERFORM pg_notify('{channel}', p_by);
    END IF;
    RETURN QUERY SELECT * FROM {schema}.holdfast_record WHERE run = coalesce(v_new, v_run);
END $$;

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
        END IF;
    END LOOP;
    IF v_count > 0 THEN
        PERFORM pg_notify('{channel}', p_by);
    END IF;
    RETURN v_count;
END $$;

-- Current runs, newest instance first, of one workflow or (NULL) of all: every workflow by one seek, a page of each by
-- one range of an index, and the newest of those.
CREATE FUNCTION {schema}.holdfast_list(p_workflow TEXT, p_status TEXT, p_before BIGINT, p_limit BIGINT)
RETURNS SETOF {schema}.holdfast_record LANGUAGE plpgsql STABLE
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
    IF p_status IS NULL THEN
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

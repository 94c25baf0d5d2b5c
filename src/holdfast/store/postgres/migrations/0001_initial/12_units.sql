-- Units of runs, done one by one (Advance).

-- What somebody has taken of what became due, and whether something is left.
CREATE TYPE {schema}.holdfast_took AS (runs BIGINT[], units BIGINT[], epochs BIGINT[], due BOOLEAN);

-- A batch. p_a_* has one entry for each, p_f_*, p_l_*, p_d_*, p_o_*, p_x_* and p_u_* one for each fact, log line,
-- delivery, opening, unit that goes and unit that comes, with the number of what it belongs to. No task is named twice
-- as one's own, nor does any go that another one here adds or has for its own after that.
-- Answers which were applied, and what the claimant has now: runs, then units, then epochs.
--
-- All runs concerned are locked first, in their order; so nobody else opens, frees or ends a unit of theirs meanwhile.
-- Only claims go on, and find nothing but what is due already.
CREATE FUNCTION {schema}.holdfast_advance(
    p_now BIGINT, p_by TEXT, p_line INTEGER, p_n BIGINT, p_owner TEXT, p_lease_ms BIGINT, p_room BIGINT,
    p_token BIGINT, p_quiet BOOLEAN,
    p_a_run BIGINT[], p_a_unit BIGINT[], p_a_owner TEXT[], p_a_epoch BIGINT[], p_a_back BOOLEAN[], p_a_run_at BIGINT[],
    p_a_missing BIGINT[], p_a_seen BIGINT[], p_a_started_at BIGINT[],
    p_f_of INTEGER[], p_f_state INTEGER[], p_f_key BYTEA[], p_f_n BIGINT[], p_f_kind TEXT[], p_f_at BIGINT[],
    p_f_started_at BIGINT[], p_f_seq BIGINT[], p_f_ok BOOLEAN[], p_f_value BYTEA[], p_f_name BYTEA[],
    p_f_attempts BIGINT[], p_f_max_attempts BIGINT[], p_f_timeout_ms BIGINT[], p_f_wake_at BIGINT[],
    p_f_event_type TEXT[], p_f_event BIGINT[],
    p_l_of INTEGER[], p_l_level TEXT[], p_l_category TEXT[], p_l_message BYTEA[], p_l_data BYTEA[], p_l_at BIGINT[],
    p_l_step_key BYTEA[], p_l_attempt BIGINT[], p_l_is_replay BOOLEAN[],
    p_d_of INTEGER[], p_d_event BIGINT[], p_d_key BYTEA[], p_d_at BIGINT[],
    p_o_of INTEGER[], p_o_unit BIGINT[], p_o_by BIGINT[],
    p_x_of INTEGER[], p_x_unit BIGINT[],
    p_u_of INTEGER[], p_u_unit BIGINT[], p_u_key BYTEA[], p_u_missing BIGINT[]
) RETURNS TABLE (applied INTEGER[], taken BIGINT[], due BOOLEAN) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_lease BIGINT := v_now + p_lease_ms;
    v_done INTEGER[] := array_fill(0, ARRAY[cardinality(p_a_run)]);
    v_held INTEGER[];
    v_back INTEGER[];
    v_at INTEGER;
    v_run BIGINT;
    v_one RECORD;
    v_paused BIGINT[];
    v_pausing BIGINT[];
    v_less_run BIGINT[];
    v_less BIGINT[];
    v_free_run BIGINT[];
    v_free_unit BIGINT[];
    v_added_run BIGINT[];
    v_added_unit BIGINT[];
    v_room BIGINT := p_room;
    v_took {schema}.holdfast_took;
    v_runs BIGINT[] := '{}';
    v_units BIGINT[] := '{}';
    v_epochs BIGINT[] := '{}';
    v_due BOOLEAN := false;
    v_count BIGINT;
    v_receipt {schema}.holdfast_receipt;
BEGIN
    PERFORM 1 FROM {schema}.holdfast_task AS t WHERE t.run = ANY (p_a_run) AND t.unit = 0 ORDER BY t.run
        FOR NO KEY UPDATE;
    -- Only now, with the locks: an earlier try of this very call may have been under way until a moment ago.
    SELECT * INTO v_receipt FROM {schema}.holdfast_receipt WHERE store = p_by AND line = p_line AND n >= p_n;
    IF FOUND THEN
        IF v_receipt.n > p_n THEN
            RAISE EXCEPTION 'a late copy of a call that was answered long ago' USING ERRCODE = 'HF002';
        END IF;
        RETURN QUERY SELECT v_receipt.verdicts, v_receipt.taken, v_receipt.due[1];
        RETURN;
    END IF;

    v_paused := ARRAY(SELECT id FROM {schema}.holdfast_run WHERE id = ANY (p_a_run) AND status = 'paused');
    -- The fence is part of what is done to the task. IS TRUE, because the index by owner would find all that is held.
    WITH gone AS (
        DELETE FROM {schema}.holdfast_task AS t
         USING unnest(p_a_run, p_a_unit, p_a_owner, p_a_epoch, p_a_back)
               WITH ORDINALITY AS a (run, unit, owner, epoch, back, ord)
         WHERE NOT a.back AND t.run = a.run AND t.unit = a.unit AND (t.owner = a.owner) IS TRUE AND t.epoch = a.epoch
        RETURNING a.ord
    )
    SELECT array_agg(ord) INTO v_held FROM gone;
    IF true = ANY (p_a_back) THEN
        WITH freed AS (
            UPDATE {schema}.holdfast_task AS t
               SET owner = NULL, lease_until = NULL, losses = 0, signal = t.signal & 2,
                   run_at = CASE WHEN a.run <> ALL (v_paused) THEN a.run_at END,
                   kind = CASE WHEN a.run_at <= v_now THEN 2 ELSE 1 END, bucket = 0,
                   missing = CASE WHEN t.unit = 0 THEN t.missing ELSE a.missing END
              FROM unnest(p_a_run, p_a_unit, p_a_owner, p_a_epoch, p_a_back, p_a_run_at, p_a_missing)
                   WITH ORDINALITY AS a (run, unit, owner, epoch, back, run_at, missing, ord)
             WHERE a.back AND t.run = a.run AND t.unit = a.unit AND (t.owner = a.owner) IS TRUE AND t.epoch = a.epoch
            RETURNING a.ord, t.run, t.unit, t.run_at, t.signal
        )
        SELECT array_agg(ord), array_agg(run) FILTER (WHERE signal <> 0),
               array_agg(run) FILTER (WHERE unit > 0 AND run_at <= v_now),
               array_agg(unit) FILTER (WHERE unit > 0 AND run_at <= v_now)
          INTO v_back, v_pausing, v_free_run, v_free_unit
          FROM freed;
        v_paused := v_paused || v_pausing;
    END IF;
    FOREACH v_at IN ARRAY coalesce(v_held || v_back, v_held, v_back, '{}') LOOP
        v_done[v_at] := 1;
    END LOOP;

    WITH made AS (
        INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, value, name, attempts,
                                            max_attempts, timeout_ms, wake_at, event_type, event)
        SELECT p_a_run[f.o], f.state, f.key, f.n, f.kind, f.at, f.started_at, f.seq, f.ok, f.value, f.name,
               f.attempts, f.max_attempts, f.timeout_ms, f.wake_at, f.event_type, f.event
          FROM unnest(p_f_of, p_f_state, p_f_key, p_f_n, p_f_kind, p_f_at, p_f_started_at, p_f_seq, p_f_ok, p_f_value,
                      p_f_name, p_f_attempts, p_f_max_attempts, p_f_timeout_ms, p_f_wake_at, p_f_event_type, p_f_event)
               AS f (o, state, key, n, kind, at, started_at, seq, ok, value, name, attempts, max_attempts, timeout_ms,
                     wake_at, event_type, event)
         WHERE f.state = 0 AND v_done[f.o] = 1
        ON CONFLICT (run, state, key, n) DO NOTHING
        RETURNING run
    )
    SELECT array_agg(run), array_agg(n) INTO v_less_run, v_less
      FROM (SELECT run, count(*) AS n FROM made GROUP BY run) AS x;
    IF 0 < ANY (p_f_state) THEN
        INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, value, name, attempts,
                                            max_attempts, timeout_ms, wake_at, event_type, event)
        SELECT p_a_run[f.o], f.state, f.key, f.n, f.kind, f.at, f.started_at, f.seq, f.ok, f.value, f.name,
               f.attempts, f.max_attempts, f.timeout_ms, f.wake_at, f.event_type, f.event
          FROM unnest(p_f_of, p_f_state, p_f_key, p_f_n, p_f_kind, p_f_at, p_f_started_at, p_f_seq, p_f_ok, p_f_value,
                      p_f_name, p_f_attempts, p_f_max_attempts, p_f_timeout_ms, p_f_wake_at, p_f_event_type, p_f_event)
               AS f (o, state, key, n, kind, at, started_at, seq, ok, value, name, attempts, max_attempts, timeout_ms,
                     wake_at, event_type, event)
         WHERE f.state > 0 AND v_done[f.o] = 1;
    END IF;
    IF cardinality(p_l_of) > 0 THEN
        INSERT INTO {schema}.holdfast_log (run, n, level, category, message, data, at, step_key, attempt, is_replay)
        SELECT l.run, coalesce((SELECT max(n) FROM {schema}.holdfast_log WHERE run = l.run), 0)
                   + row_number() OVER (PARTITION BY l.run ORDER BY l.ord),
               l.level, l.category, l.message, l.data, l.at, l.step_key, l.attempt, l.is_replay
          FROM (SELECT p_a_run[l.o] AS run, l.*
                  FROM unnest(p_l_of, p_l_level, p_l_category, p_l_message, p_l_data, p_l_at, p_l_step_key,
                              p_l_attempt, p_l_is_replay)
                       WITH ORDINALITY
                       AS l (o, level, category, message, data, at, step_key, attempt, is_replay, ord)
                 WHERE v_done[l.o] = 1) AS l;
    END IF;
    IF cardinality(p_d_of) > 0 THEN
        UPDATE {schema}.holdfast_event AS e SET delivered_at = d.at, consumed_by = d.key
          FROM unnest(p_d_of, p_d_event, p_d_key, p_d_at) AS d (o, event, key, at)
         WHERE e.run = p_a_run[d.o] AND e.n = d.event AND e.delivered_at IS NULL AND v_done[d.o] = 1;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        IF v_count <> (SELECT count(*) FROM unnest(p_d_of) AS d (o) WHERE v_done[d.o] = 1) THEN
            RAISE EXCEPTION 'an event cannot be consumed: it is not there, or was before' USING ERRCODE = 'HF001';
        END IF;
    END IF;

    FOR v_one IN
        SELECT p_a_run[x.o] AS run, x.unit FROM unnest(p_x_of, p_x_unit) AS x (o, unit) WHERE v_done[x.o] = 1
    LOOP
        DELETE FROM {schema}.holdfast_task AS t WHERE t.run = v_one.run AND t.unit = v_one.unit AND t.unit > 0;
    END LOOP;
    IF cardinality(p_u_of) > 0 THEN
        WITH added AS (
            -- One that comes again goes on counting its epochs where it was: its STARTs stay, and no fence meets a
            -- stranger.
            INSERT INTO {schema}.holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, epoch,
                                                losses, lost, signal, topics, missing, key)
            SELECT t.run, u.unit, t.workflow, t.queue, 0, 2, t.priority,
                   CASE WHEN u.missing = 0 AND t.run <> ALL (v_paused) THEN v_now END,
                   coalesce((SELECT max(f.n) FROM {schema}.holdfast_fact AS f
                              WHERE f.run = t.run AND f.state = 1 AND f.key = u.key), 0),
                   0, false, 0, '', u.missing, u.key
              FROM unnest(p_u_of, p_u_unit, p_u_key, p_u_missing) AS u (o, unit, key, missing)
             CROSS JOIN LATERAL (
                   SELECT * FROM {schema}.holdfast_task WHERE run = p_a_run[u.o] AND unit = 0 OFFSET 0) AS t
             WHERE v_done[u.o] = 1
            ON CONFLICT (run, unit) DO NOTHING
            RETURNING run, unit, run_at
        )
        SELECT array_agg(run), array_agg(unit) INTO v_added_run, v_added_unit FROM added WHERE run_at IS NOT NULL;
        v_free_run := v_free_run || v_added_run;
        v_free_unit := v_free_unit || v_added_unit;
    END IF;

    IF cardinality(p_o_of) > 0 THEN
        v_took := {schema}.holdfast_open(
            v_now, p_owner, v_lease, v_room, p_token, v_paused,
            ARRAY(SELECT CASE WHEN v_done[o.o] = 1 THEN p_a_run[o.o] END
                    FROM unnest(p_o_of) WITH ORDINALITY AS o (o, ord) ORDER BY o.ord), p_o_unit, p_o_by);
        v_runs := v_took.runs;
        v_units := v_took.units;
        v_epochs := v_took.epochs;
        v_due := v_took.due;
        v_room := v_room - cardinality(v_runs);
    END IF;
    IF v_free_run IS NOT NULL THEN
        v_took := {schema}.holdfast_take_free(p_owner, v_lease, v_room, p_token, v_paused, v_free_run, v_free_unit);
        v_runs := v_runs || v_took.runs;
        v_units := v_units || v_took.units;
        v_epochs := v_epochs || v_took.epochs;
        v_due := v_due OR v_took.due;
    END IF;
    IF cardinality(v_runs) > 0 THEN
        PERFORM {schema}.holdfast_write_starts(v_now, p_owner, v_lease, v_runs, v_units);
    END IF;
    IF v_less_run IS NOT NULL OR v_back IS NOT NULL THEN
        v_took := {schema}.holdfast_lessen(
            v_now, p_owner, v_lease, p_token, v_paused, v_less_run, v_less,
            ARRAY(SELECT p_a_run[b.o] FROM unnest(v_back) AS b (o) WHERE p_a_unit[b.o] = 0 ORDER BY b.o),
            ARRAY(SELECT p_a_seen[b.o] FROM unnest(v_back) AS b (o) WHERE p_a_unit[b.o] = 0 ORDER BY b.o));
        v_runs := v_runs || v_took.runs;
        v_units := v_units || v_took.units;
        v_epochs := v_epochs || v_took.epochs;
        v_due := v_due OR v_took.due;
    END IF;

    FOR v_one IN
        SELECT DISTINCT ON (a.run) a.run, a.started_at
          FROM unnest(p_a_run, p_a_started_at, v_done) WITH ORDINALITY AS a (run, started_at, done, ord)
         CROSS JOIN LATERAL (
               SELECT FROM {schema}.holdfast_run WHERE id = a.run AND started_at IS NULL OFFSET 0) AS r
         WHERE a.done = 1 AND a.started_at IS NOT NULL ORDER BY a.run, a.ord
    LOOP
        UPDATE {schema}.holdfast_run SET started_at = v_one.started_at, updated_at = v_now
         WHERE id = v_one.run AND started_at IS NULL;
    END LOOP;
    FOREACH v_run IN ARRAY coalesce(v_pausing, '{}') LOOP
        PERFORM {schema}.holdfast_set_paused(v_now, v_run, NULL);
    END LOOP;
    IF v_pausing IS NOT NULL OR (v_due AND NOT p_quiet) THEN
        PERFORM pg_notify('{channel}', p_by);
    END IF;

    INSERT INTO {schema}.holdfast_receipt (store, line, n, at, verdicts, signals, due, taken)
    VALUES (p_by, p_line, p_n, v_now, v_done, '{}', ARRAY[v_due], v_runs || v_units || v_epochs)
    ON CONFLICT (store, line) DO UPDATE
       SET n = excluded.n, at = excluded.at, verdicts = excluded.verdicts, signals = excluded.signals,
           due = excluded.due, more = NULL, taken = excluded.taken;
    RETURN QUERY SELECT v_done, v_runs || v_units || v_epochs, v_due;
END $$;

-- Units miss less, and some are due by that: the first p_room of them are taken. p_run: NULL for what is left out.
-- One that has a time of its own may be taken by a claim meanwhile; p_token tells whose it is.
CREATE FUNCTION {schema}.holdfast_open(
    p_now BIGINT, p_owner TEXT, p_lease BIGINT, p_room BIGINT, p_token BIGINT, p_paused BIGINT[], p_run BIGINT[],
    p_unit BIGINT[], p_by BIGINT[]
) RETURNS {schema}.holdfast_took LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_run BIGINT[];
    v_unit BIGINT[];
    v_by BIGINT[];
    v_place BIGINT[];
    v_took {schema}.holdfast_took;
    v_due BIGINT;
BEGIN
    -- Its place among those that become due; NULL: it does not.
    SELECT array_agg(x.run ORDER BY x.run, x.unit), array_agg(x.unit ORDER BY x.run, x.unit),
           array_agg(x.by ORDER BY x.run, x.unit),
           array_agg(CASE WHEN x.due THEN x.place END ORDER BY x.run, x.unit), count(*) FILTER (WHERE x.due)
      INTO v_run, v_unit, v_by, v_place, v_due
      FROM (SELECT o.run, o.unit, o.by, d.due, count(*) FILTER (WHERE d.due) OVER (ORDER BY o.run, o.unit) AS place
              FROM (SELECT a.run, a.unit, sum(a.by)::bigint AS by
                      FROM unnest(p_run, p_unit, p_by) AS a (run, unit, by)
                     WHERE a.run IS NOT NULL GROUP BY a.run, a.unit) AS o
             CROSS JOIN LATERAL (
                   SELECT * FROM {schema}.holdfast_task WHERE run = o.run AND unit = o.unit OFFSET 0) AS t
             CROSS JOIN LATERAL (
                   SELECT t.owner IS NULL AND t.missing <= o.by AND (t.run_at <= p_now) IS NOT TRUE
                          AND o.run <> ALL (p_paused)) AS d (due)) AS x;
    WITH opened AS (
        UPDATE {schema}.holdfast_task AS t
           SET missing = greatest(t.missing - o.by, 0),
               run_at = CASE WHEN o.place IS NOT NULL AND t.owner IS NULL THEN p_now ELSE t.run_at END,
               kind = CASE WHEN o.place IS NOT NULL AND t.owner IS NULL THEN 2 ELSE t.kind END,
               bucket = CASE WHEN o.place IS NOT NULL AND t.owner IS NULL THEN 0 ELSE t.bucket END,
               owner = CASE WHEN o.place <= p_room AND t.owner IS NULL THEN p_owner ELSE t.owner END,
               lease_until = CASE WHEN o.place <= p_room AND t.owner IS NULL THEN p_lease ELSE t.lease_until END,
               epoch = CASE WHEN o.place <= p_room AND t.owner IS NULL THEN t.epoch + 1 ELSE t.epoch END,
               claimed_by = CASE WHEN o.place <= p_room AND t.owner IS NULL THEN p_token ELSE t.claimed_by END
          FROM unnest(v_run, v_unit, v_by, v_place) AS o (run, unit, by, place)
         WHERE t.run = o.run AND t.unit = o.unit
        RETURNING t.run, t.unit, t.epoch, t.claimed_by = p_token AS taken
    )
    SELECT coalesce(array_agg(run), '{}'), coalesce(array_agg(unit), '{}'), coalesce(array_agg(epoch), '{}')
      INTO v_took.runs, v_took.units, v_took.epochs
      FROM opened WHERE taken;
    v_took.due := v_due > cardinality(v_took.runs);
    RETURN v_took;
END $$;

-- Takes the first p_room of units that are due.
CREATE FUNCTION {schema}.holdfast_take_free(
    p_owner TEXT, p_lease BIGINT, p_room BIGINT, p_token BIGINT, p_paused BIGINT[], p_run BIGINT[], p_unit BIGINT[]
) RETURNS {schema}.holdfast_took LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_took {schema}.holdfast_took;
    v_due BIGINT;
BEGIN
    WITH free AS (
        SELECT a.run, a.unit, row_number() OVER (ORDER BY a.run, a.unit) AS place
          FROM unnest(p_run, p_unit) AS a (run, unit) WHERE a.run <> ALL (p_paused)
    ), took AS (
        UPDATE {schema}.holdfast_task AS t
           SET owner = p_owner, lease_until = p_lease, epoch = t.epoch + 1, claimed_by = p_token
          FROM free AS f WHERE t.run = f.run AND t.unit = f.unit AND f.place <= p_room
        RETURNING t.run, t.unit, t.epoch
    )
    SELECT coalesce(array_agg(t.run), '{}'), coalesce(array_agg(t.unit), '{}'), coalesce(array_agg(t.epoch), '{}'),
           (SELECT count(*) FROM free)
      INTO v_took.runs, v_took.units, v_took.epochs, v_due
      FROM took AS t;
    v_took.due := v_due > cardinality(v_took.runs);
    RETURN v_took;
END $$;

-- Runs miss less (p_by) or were given back (p_back, p_seen), and are taken if they are due by that.
CREATE FUNCTION {schema}.holdfast_lessen(
    p_now BIGINT, p_owner TEXT, p_lease BIGINT, p_token BIGINT, p_paused BIGINT[], p_run BIGINT[], p_by BIGINT[],
    p_back BIGINT[], p_seen BIGINT[]
) RETURNS {schema}.holdfast_took LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_run BIGINT[];
    v_unit BIGINT[];
    v_missing BIGINT[];
    v_due BOOLEAN[];
    v_took {schema}.holdfast_took;
BEGIN
    SELECT array_agg(l.run), array_agg(x.unit), array_agg(greatest(x.missing - l.by, 0)), array_agg(
               x.owner IS NULL AND l.run <> ALL (p_paused)
               AND CASE WHEN l.back THEN x.missing <= l.by OR l.called OR x.run_at <= p_now
                        ELSE x.missing <= l.by AND (x.run_at <= p_now) IS NOT TRUE END)
      INTO v_run, v_unit, v_missing, v_due
      FROM (SELECT a.run, sum(a.by)::bigint AS by, bool_or(a.back) AS back, bool_or(a.called) AS called
              FROM (SELECT l.run, l.by, false, false FROM unnest(p_run, p_by) AS l (run, by)
                    UNION ALL
                    SELECT b.run, 0, true, EXISTS (
                               SELECT FROM {schema}.holdfast_event AS e
                                WHERE e.run = b.run AND e.n > b.seen AND e.delivered_at IS NULL AND e.type LIKE '@%')
                      FROM unnest(p_back, p_seen) AS b (run, seen)) AS a (run, by, back, called)
             GROUP BY a.run) AS l
     CROSS JOIN LATERAL (SELECT * FROM {schema}.holdfast_task WHERE run = l.run AND unit = 0 OFFSET 0) AS x;
    WITH lessened AS (
        UPDATE {schema}.holdfast_task AS t
           SET missing = l.missing, run_at = CASE WHEN l.due THEN p_now ELSE t.run_at END,
               kind = CASE WHEN l.due THEN 2 ELSE t.kind END, bucket = CASE WHEN l.due THEN 0 ELSE t.bucket END,
               owner = CASE WHEN l.due THEN p_owner ELSE t.owner END,
               lease_until = CASE WHEN l.due THEN p_lease ELSE t.lease_until END,
               lost = CASE WHEN l.due THEN false ELSE t.lost END,
               epoch = CASE WHEN l.due THEN t.epoch + 1 ELSE t.epoch END,
               claimed_by = CASE WHEN l.due THEN p_token ELSE t.claimed_by END
          FROM unnest(v_run, v_unit, v_missing, v_due) AS l (run, unit, missing, due)
         WHERE t.run = l.run AND t.unit = l.unit
        RETURNING t.run, t.epoch, l.due
    )
    SELECT coalesce(array_agg(run), '{}'), coalesce(array_agg(0), '{}'), coalesce(array_agg(epoch), '{}'), false
      INTO v_took.runs, v_took.units, v_took.epochs, v_took.due
      FROM lessened WHERE due;
    RETURN v_took;
END $$;

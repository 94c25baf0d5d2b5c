-- Units of runs (Advance).

-- Apply a batch of advances. p_a_* have one entry for each advance; p_f_*, p_l_*, p_d_*, p_m_*, p_x_* and p_u_* have
-- one for each fact, log line, delivery, decrement of missing, removed unit and new unit, with the number of its
-- advance. Within a batch, no advance belongs to a task that an earlier one released or removed, and none removes a
-- unit that an earlier one added. Returns which advances were applied, and the tasks that the claimant claimed: runs,
-- then units, then epochs.
--
-- The tasks of all runs concerned are locked first, in lock order, so that no other transaction decrements, frees or
-- ends their units meanwhile. Only claims continue, and they find nothing but tasks that were due before.
CREATE OR REPLACE FUNCTION {schema}.holdfast_advance(
    p_now BIGINT, p_store TEXT, p_line INTEGER, p_n BIGINT, p_owner TEXT, p_lease_ms BIGINT, p_claim_limit BIGINT,
    p_token BIGINT,
    p_a_run BIGINT[], p_a_unit BIGINT[], p_a_owner TEXT[], p_a_epoch BIGINT[], p_a_release BOOLEAN[],
    p_a_run_at BIGINT[], p_a_missing BIGINT[], p_a_seen BIGINT[], p_a_started_at BIGINT[],
    p_f_advance INTEGER[], p_f_state INTEGER[], p_f_key BYTEA[], p_f_n BIGINT[], p_f_kind TEXT[], p_f_at BIGINT[],
    p_f_started_at BIGINT[], p_f_seq BIGINT[], p_f_ok BOOLEAN[], p_f_value BYTEA[], p_f_name BYTEA[],
    p_f_attempts BIGINT[], p_f_max_attempts BIGINT[], p_f_timeout_ms BIGINT[], p_f_wake_at BIGINT[],
    p_f_event_type TEXT[], p_f_event BIGINT[],
    p_l_advance INTEGER[], p_l_level TEXT[], p_l_category TEXT[], p_l_message BYTEA[], p_l_data BYTEA[],
    p_l_at BIGINT[], p_l_step_key BYTEA[], p_l_attempt BIGINT[], p_l_is_replay BOOLEAN[],
    p_d_advance INTEGER[], p_d_event BIGINT[], p_d_key BYTEA[], p_d_at BIGINT[],
    p_m_advance INTEGER[], p_m_unit BIGINT[], p_m_decrement BIGINT[],
    p_x_advance INTEGER[], p_x_unit BIGINT[],
    p_u_advance INTEGER[], p_u_unit BIGINT[], p_u_key BYTEA[], p_u_missing BIGINT[]
) RETURNS TABLE (applied INTEGER[], taken BIGINT[], due BOOLEAN) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_lease_until BIGINT := v_now + p_lease_ms;
    v_applied INTEGER[] := array_fill(0, ARRAY[cardinality(p_a_run)]);
    v_removed INTEGER[];
    v_released INTEGER[];
    v_at INTEGER;
    v_run BIGINT;
    v_unit RECORD;
    v_started RECORD;
    v_paused BIGINT[];
    v_pausing BIGINT[];
    v_result_run BIGINT[];
    v_result_count BIGINT[];
    v_free_run BIGINT[];
    v_free_unit BIGINT[];
    v_added_run BIGINT[];
    v_added_unit BIGINT[];
    v_claim_limit BIGINT := p_claim_limit;
    v_taken {schema}.holdfast_taken;
    v_runs BIGINT[] := '{}';
    v_units BIGINT[] := '{}';
    v_epochs BIGINT[] := '{}';
    v_due BOOLEAN := false;
    v_count BIGINT;
    v_receipt {schema}.holdfast_receipt;
BEGIN
    PERFORM 1 FROM {schema}.holdfast_task AS t WHERE t.run = ANY (p_a_run) AND t.unit = 0 ORDER BY t.run
        FOR NO KEY UPDATE;
    -- Read the receipt under the locks: an earlier attempt of this call may have held them until now.
    SELECT * INTO v_receipt FROM {schema}.holdfast_receipt WHERE store = p_store AND line = p_line AND n >= p_n;
    IF FOUND THEN
        IF v_receipt.n > p_n THEN
            RAISE EXCEPTION 'stale retry: a later call was made under this receipt' USING ERRCODE = 'HF002';
        END IF;
        RETURN QUERY SELECT v_receipt.verdicts, v_receipt.taken, v_receipt.due[1];
        RETURN;
    END IF;

    v_paused := ARRAY(SELECT id FROM {schema}.holdfast_run WHERE id = ANY (p_a_run) AND status = 'paused');
    -- The conditions of the DELETE and the UPDATE are the fence. IS TRUE keeps the planner off the index by owner.
    WITH gone AS (
        DELETE FROM {schema}.holdfast_task AS t
         USING unnest(p_a_run, p_a_unit, p_a_owner, p_a_epoch, p_a_release)
               WITH ORDINALITY AS a (run, unit, owner, epoch, release, ord)
         WHERE NOT a.release AND t.run = a.run AND t.unit = a.unit AND (t.owner = a.owner) IS TRUE AND t.epoch = a.epoch
        RETURNING a.ord
    )
    SELECT array_agg(ord) INTO v_removed FROM gone;
    IF true = ANY (p_a_release) THEN
        WITH freed AS (
            UPDATE {schema}.holdfast_task AS t
               SET owner = NULL, lease_until = NULL, losses = 0, signal = t.signal & 2,
                   run_at = CASE WHEN a.run <> ALL (v_paused) THEN a.run_at END,
                   kind = CASE WHEN a.run_at <= v_now THEN 2 ELSE 1 END, bucket = 0,
                   missing = CASE WHEN t.unit = 0 THEN t.missing ELSE a.missing END
              FROM unnest(p_a_run, p_a_unit, p_a_owner, p_a_epoch, p_a_release, p_a_run_at, p_a_missing)
                   WITH ORDINALITY AS a (run, unit, owner, epoch, release, run_at, missing, ord)
             WHERE a.release AND t.run = a.run AND t.unit = a.unit AND (t.owner = a.owner) IS TRUE AND t.epoch = a.epoch
            RETURNING a.ord, t.run, t.unit, t.run_at, t.signal
        )
        SELECT array_agg(ord), array_agg(run) FILTER (WHERE signal <> 0),
               array_agg(run) FILTER (WHERE unit > 0 AND run_at <= v_now),
               array_agg(unit) FILTER (WHERE unit > 0 AND run_at <= v_now)
          INTO v_released, v_pausing, v_free_run, v_free_unit
          FROM freed;
        v_paused := v_paused || v_pausing;
    END IF;
    FOREACH v_at IN ARRAY coalesce(v_removed || v_released, v_removed, v_released, '{}') LOOP
        v_applied[v_at] := 1;
    END LOOP;

    WITH made AS (
        INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, value, name, attempts,
                                            max_attempts, timeout_ms, wake_at, event_type, event)
        SELECT p_a_run[f.o], f.state, f.key, f.n, f.kind, f.at, f.started_at, f.seq, f.ok, f.value, f.name,
               f.attempts, f.max_attempts, f.timeout_ms, f.wake_at, f.event_type, f.event
          FROM unnest(p_f_advance, p_f_state, p_f_key, p_f_n, p_f_kind, p_f_at, p_f_started_at, p_f_seq, p_f_ok,
                      p_f_value, p_f_name, p_f_attempts, p_f_max_attempts, p_f_timeout_ms, p_f_wake_at,
                      p_f_event_type, p_f_event)
               AS f (o, state, key, n, kind, at, started_at, seq, ok, value, name, attempts, max_attempts, timeout_ms,
                     wake_at, event_type, event)
         WHERE f.state = 0 AND v_applied[f.o] = 1
        ON CONFLICT (run, state, key, n) DO NOTHING
        RETURNING run
    )
    SELECT array_agg(run), array_agg(n) INTO v_result_run, v_result_count
      FROM (SELECT run, count(*) AS n FROM made GROUP BY run) AS x;
    IF 0 < ANY (p_f_state) THEN
        INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, value, name, attempts,
                                            max_attempts, timeout_ms, wake_at, event_type, event)
        SELECT p_a_run[f.o], f.state, f.key, f.n, f.kind, f.at, f.started_at, f.seq, f.ok, f.value, f.name,
               f.attempts, f.max_attempts, f.timeout_ms, f.wake_at, f.event_type, f.event
          FROM unnest(p_f_advance, p_f_state, p_f_key, p_f_n, p_f_kind, p_f_at, p_f_started_at, p_f_seq, p_f_ok,
                      p_f_value, p_f_name, p_f_attempts, p_f_max_attempts, p_f_timeout_ms, p_f_wake_at,
                      p_f_event_type, p_f_event)
               AS f (o, state, key, n, kind, at, started_at, seq, ok, value, name, attempts, max_attempts, timeout_ms,
                     wake_at, event_type, event)
         WHERE f.state > 0 AND v_applied[f.o] = 1;
    END IF;
    IF cardinality(p_l_advance) > 0 THEN
        INSERT INTO {schema}.holdfast_log (run, n, level, category, message, data, at, step_key, attempt, is_replay)
        SELECT l.run, coalesce((SELECT max(n) FROM {schema}.holdfast_log WHERE run = l.run), 0)
                   + row_number() OVER (PARTITION BY l.run ORDER BY l.ord),
               l.level, l.category, l.message, l.data, l.at, l.step_key, l.attempt, l.is_replay
          FROM (SELECT p_a_run[l.o] AS run, l.*
                  FROM unnest(p_l_advance, p_l_level, p_l_category, p_l_message, p_l_data, p_l_at, p_l_step_key,
                              p_l_attempt, p_l_is_replay)
                       WITH ORDINALITY
                       AS l (o, level, category, message, data, at, step_key, attempt, is_replay, ord)
                 WHERE v_applied[l.o] = 1) AS l;
    END IF;
    IF cardinality(p_d_advance) > 0 THEN
        UPDATE {schema}.holdfast_event AS e SET delivered_at = d.at, consumed_by = d.key
          FROM unnest(p_d_advance, p_d_event, p_d_key, p_d_at) AS d (o, event, key, at)
         WHERE e.run = p_a_run[d.o] AND e.n = d.event AND e.delivered_at IS NULL AND v_applied[d.o] = 1;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        IF v_count <> (SELECT count(*) FROM unnest(p_d_advance) AS d (o) WHERE v_applied[d.o] = 1) THEN
            RAISE EXCEPTION 'an event cannot be consumed: it does not exist or was consumed before'
                USING ERRCODE = 'HF001';
        END IF;
    END IF;

    FOR v_unit IN
        SELECT p_a_run[x.o] AS run, x.unit FROM unnest(p_x_advance, p_x_unit) AS x (o, unit) WHERE v_applied[x.o] = 1
    LOOP
        DELETE FROM {schema}.holdfast_task AS t WHERE t.run = v_unit.run AND t.unit = v_unit.unit AND t.unit > 0;
    END LOOP;
    IF cardinality(p_u_advance) > 0 THEN
        WITH added AS (
            -- A unit that is added again continues its epochs: its START facts stay, and no stale fence matches.
            INSERT INTO {schema}.holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, epoch,
                                                losses, lost, signal, topics, missing, key)
            SELECT t.run, u.unit, t.workflow, t.queue, 0, 2, t.priority,
                   CASE WHEN u.missing = 0 AND t.run <> ALL (v_paused) THEN v_now END,
                   coalesce((SELECT max(f.n) FROM {schema}.holdfast_fact AS f
                              WHERE f.run = t.run AND f.state = 1 AND f.key = u.key), 0),
                   0, false, 0, '', u.missing, u.key
              FROM unnest(p_u_advance, p_u_unit, p_u_key, p_u_missing) AS u (o, unit, key, missing)
             CROSS JOIN LATERAL (
                   SELECT * FROM {schema}.holdfast_task WHERE run = p_a_run[u.o] AND unit = 0 OFFSET 0) AS t
             WHERE v_applied[u.o] = 1
            ON CONFLICT (run, unit) DO NOTHING
            RETURNING run, unit, run_at
        )
        SELECT array_agg(run), array_agg(unit) INTO v_added_run, v_added_unit FROM added WHERE run_at IS NOT NULL;
        v_free_run := v_free_run || v_added_run;
        v_free_unit := v_free_unit || v_added_unit;
    END IF;

    IF cardinality(p_m_advance) > 0 THEN
        v_taken := {schema}.holdfast_decrement_units(
            v_now, p_owner, v_lease_until, v_claim_limit, p_token, v_paused,
            ARRAY(SELECT CASE WHEN v_applied[o.o] = 1 THEN p_a_run[o.o] END
                    FROM unnest(p_m_advance) WITH ORDINALITY AS o (o, ord) ORDER BY o.ord), p_m_unit, p_m_decrement);
        v_runs := v_taken.runs;
        v_units := v_taken.units;
        v_epochs := v_taken.epochs;
        v_due := v_taken.due;
        v_claim_limit := v_claim_limit - cardinality(v_runs);
    END IF;
    IF v_free_run IS NOT NULL THEN
        v_taken := {schema}.holdfast_take_units(p_owner, v_lease_until, v_claim_limit, p_token, v_paused, v_free_run,
                                                v_free_unit);
        v_runs := v_runs || v_taken.runs;
        v_units := v_units || v_taken.units;
        v_epochs := v_epochs || v_taken.epochs;
        v_due := v_due OR v_taken.due;
    END IF;
    IF cardinality(v_runs) > 0 THEN
        PERFORM {schema}.holdfast_write_starts(v_now, p_owner, v_lease_until, v_runs, v_units);
    END IF;
    IF v_result_run IS NOT NULL OR v_released IS NOT NULL THEN
        v_taken := {schema}.holdfast_decrement_runs(
            v_now, p_owner, v_lease_until, p_token, v_paused, v_result_run, v_result_count,
            ARRAY(SELECT p_a_run[b.o] FROM unnest(v_released) AS b (o) WHERE p_a_unit[b.o] = 0 ORDER BY b.o),
            ARRAY(SELECT p_a_seen[b.o] FROM unnest(v_released) AS b (o) WHERE p_a_unit[b.o] = 0 ORDER BY b.o));
        v_runs := v_runs || v_taken.runs;
        v_units := v_units || v_taken.units;
        v_epochs := v_epochs || v_taken.epochs;
        v_due := v_due OR v_taken.due;
    END IF;

    FOR v_started IN
        SELECT DISTINCT ON (a.run) a.run, a.started_at
          FROM unnest(p_a_run, p_a_started_at, v_applied) WITH ORDINALITY AS a (run, started_at, done, ord)
         CROSS JOIN LATERAL (
               SELECT FROM {schema}.holdfast_run WHERE id = a.run AND started_at IS NULL OFFSET 0) AS r
         WHERE a.done = 1 AND a.started_at IS NOT NULL ORDER BY a.run, a.ord
    LOOP
        UPDATE {schema}.holdfast_run SET started_at = v_started.started_at, updated_at = v_now
         WHERE id = v_started.run AND started_at IS NULL;
    END LOOP;
    FOREACH v_run IN ARRAY coalesce(v_pausing, '{}') LOOP
        PERFORM {schema}.holdfast_set_paused(v_now, v_run, NULL);
    END LOOP;
    IF v_pausing IS NOT NULL OR v_due THEN
        PERFORM pg_notify('{channel}', p_store);
    END IF;

    INSERT INTO {schema}.holdfast_receipt (store, line, n, at, verdicts, signals, due, taken)
    VALUES (p_store, p_line, p_n, v_now, v_applied, '{}', ARRAY[v_due], v_runs || v_units || v_epochs)
    ON CONFLICT (store, line) DO UPDATE
       SET n = excluded.n, at = excluded.at, verdicts = excluded.verdicts, signals = excluded.signals,
           due = excluded.due, more = NULL, taken = excluded.taken;
    RETURN QUERY SELECT v_applied, v_runs || v_units || v_epochs, v_due;
END $$;

-- Decrement missing of units, and claim the first p_claim_limit of those that become due. Entries whose p_run is NULL
-- are skipped. A unit with a due time of its own may be claimed by another call meanwhile; claimed_by = p_token
-- identifies this one's.
CREATE OR REPLACE FUNCTION {schema}.holdfast_decrement_units(
    p_now BIGINT, p_owner TEXT, p_lease_until BIGINT, p_claim_limit BIGINT, p_token BIGINT, p_paused BIGINT[],
    p_run BIGINT[], p_unit BIGINT[], p_decrement BIGINT[]
) RETURNS {schema}.holdfast_taken LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_run BIGINT[];
    v_unit BIGINT[];
    v_decrement BIGINT[];
    v_place BIGINT[];
    v_taken {schema}.holdfast_taken;
    v_due BIGINT;
BEGIN
    -- v_place: position among the units that become due; NULL: the unit does not.
    SELECT array_agg(x.run ORDER BY x.run, x.unit), array_agg(x.unit ORDER BY x.run, x.unit),
           array_agg(x.decrement ORDER BY x.run, x.unit),
           array_agg(CASE WHEN x.due THEN x.place END ORDER BY x.run, x.unit), count(*) FILTER (WHERE x.due)
      INTO v_run, v_unit, v_decrement, v_place, v_due
      FROM (SELECT o.run, o.unit, o.decrement, d.due,
                   count(*) FILTER (WHERE d.due) OVER (ORDER BY o.run, o.unit) AS place
              FROM (SELECT a.run, a.unit, sum(a.decrement)::bigint AS decrement
                      FROM unnest(p_run, p_unit, p_decrement) AS a (run, unit, decrement)
                     WHERE a.run IS NOT NULL GROUP BY a.run, a.unit) AS o
             CROSS JOIN LATERAL (
                   SELECT * FROM {schema}.holdfast_task WHERE run = o.run AND unit = o.unit OFFSET 0) AS t
             CROSS JOIN LATERAL (
                   SELECT t.owner IS NULL AND t.missing <= o.decrement AND (t.run_at <= p_now) IS NOT TRUE
                          AND o.run <> ALL (p_paused)) AS d (due)) AS x;
    WITH decremented AS (
        UPDATE {schema}.holdfast_task AS t
           SET missing = greatest(t.missing - o.decrement, 0),
               run_at = CASE WHEN o.place IS NOT NULL AND t.owner IS NULL THEN p_now ELSE t.run_at END,
               kind = CASE WHEN o.place IS NOT NULL AND t.owner IS NULL THEN 2 ELSE t.kind END,
               bucket = CASE WHEN o.place IS NOT NULL AND t.owner IS NULL THEN 0 ELSE t.bucket END,
               owner = CASE WHEN o.place <= p_claim_limit AND t.owner IS NULL THEN p_owner ELSE t.owner END,
               lease_until = CASE WHEN o.place <= p_claim_limit AND t.owner IS NULL THEN p_lease_until
                                  ELSE t.lease_until END,
               epoch = CASE WHEN o.place <= p_claim_limit AND t.owner IS NULL THEN t.epoch + 1 ELSE t.epoch END,
               claimed_by = CASE WHEN o.place <= p_claim_limit AND t.owner IS NULL THEN p_token ELSE t.claimed_by END
          FROM unnest(v_run, v_unit, v_decrement, v_place) AS o (run, unit, decrement, place)
         WHERE t.run = o.run AND t.unit = o.unit
        RETURNING t.run, t.unit, t.epoch, t.claimed_by = p_token AS taken
    )
    SELECT coalesce(array_agg(run), '{}'), coalesce(array_agg(unit), '{}'), coalesce(array_agg(epoch), '{}')
      INTO v_taken.runs, v_taken.units, v_taken.epochs
      FROM decremented WHERE taken;
    v_taken.due := v_due > cardinality(v_taken.runs);
    RETURN v_taken;
END $$;

-- Claim the first p_claim_limit of the given due units.
CREATE OR REPLACE FUNCTION {schema}.holdfast_take_units(
    p_owner TEXT, p_lease_until BIGINT, p_claim_limit BIGINT, p_token BIGINT, p_paused BIGINT[], p_run BIGINT[],
    p_unit BIGINT[]
) RETURNS {schema}.holdfast_taken LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_taken {schema}.holdfast_taken;
    v_due BIGINT;
BEGIN
    WITH free AS (
        SELECT a.run, a.unit, row_number() OVER (ORDER BY a.run, a.unit) AS place
          FROM unnest(p_run, p_unit) AS a (run, unit) WHERE a.run <> ALL (p_paused)
    ), took AS (
        UPDATE {schema}.holdfast_task AS t
           SET owner = p_owner, lease_until = p_lease_until, epoch = t.epoch + 1, claimed_by = p_token
          FROM free AS f WHERE t.run = f.run AND t.unit = f.unit AND f.place <= p_claim_limit
        RETURNING t.run, t.unit, t.epoch
    )
    SELECT coalesce(array_agg(t.run), '{}'), coalesce(array_agg(t.unit), '{}'), coalesce(array_agg(t.epoch), '{}'),
           (SELECT count(*) FROM free)
      INTO v_taken.runs, v_taken.units, v_taken.epochs, v_due
      FROM took AS t;
    v_taken.due := v_due > cardinality(v_taken.runs);
    RETURN v_taken;
END $$;

-- Decrement missing of runs (unit 0; p_run, p_decrement), or handle their release (p_released, p_seen), and claim those
-- that are due as a result.
CREATE OR REPLACE FUNCTION {schema}.holdfast_decrement_runs(
    p_now BIGINT, p_owner TEXT, p_lease_until BIGINT, p_token BIGINT, p_paused BIGINT[], p_run BIGINT[],
    p_decrement BIGINT[], p_released BIGINT[], p_seen BIGINT[]
) RETURNS {schema}.holdfast_taken LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_run BIGINT[];
    v_unit BIGINT[];
    v_missing BIGINT[];
    v_due BOOLEAN[];
    v_taken {schema}.holdfast_taken;
BEGIN
    SELECT array_agg(l.run), array_agg(x.unit), array_agg(greatest(x.missing - l.decrement, 0)), array_agg(
               x.owner IS NULL AND l.run <> ALL (p_paused)
               AND CASE WHEN l.released THEN x.missing <= l.decrement OR l.has_engine_event OR x.run_at <= p_now
                        ELSE x.missing <= l.decrement AND (x.run_at <= p_now) IS NOT TRUE END)
      INTO v_run, v_unit, v_missing, v_due
      FROM (SELECT a.run, sum(a.decrement)::bigint AS decrement, bool_or(a.released) AS released,
                   bool_or(a.has_engine_event) AS has_engine_event
              FROM (SELECT l.run, l.decrement, false, false FROM unnest(p_run, p_decrement) AS l (run, decrement)
                    UNION ALL
                    SELECT b.run, 0, true, EXISTS (
                               SELECT FROM {schema}.holdfast_event AS e
                                WHERE e.run = b.run AND e.n > b.seen AND e.delivered_at IS NULL AND e.type LIKE '@%')
                      FROM unnest(p_released, p_seen) AS b (run, seen)
                   ) AS a (run, decrement, released, has_engine_event)
             GROUP BY a.run) AS l
     CROSS JOIN LATERAL (SELECT * FROM {schema}.holdfast_task WHERE run = l.run AND unit = 0 OFFSET 0) AS x;
    WITH decremented AS (
        UPDATE {schema}.holdfast_task AS t
           SET missing = l.missing, run_at = CASE WHEN l.due THEN p_now ELSE t.run_at END,
               kind = CASE WHEN l.due THEN 2 ELSE t.kind END, bucket = CASE WHEN l.due THEN 0 ELSE t.bucket END,
               owner = CASE WHEN l.due THEN p_owner ELSE t.owner END,
               lease_until = CASE WHEN l.due THEN p_lease_until ELSE t.lease_until END,
               lost = CASE WHEN l.due THEN false ELSE t.lost END,
               epoch = CASE WHEN l.due THEN t.epoch + 1 ELSE t.epoch END,
               claimed_by = CASE WHEN l.due THEN p_token ELSE t.claimed_by END
          FROM unnest(v_run, v_unit, v_missing, v_due) AS l (run, unit, missing, due)
         WHERE t.run = l.run AND t.unit = l.unit
        RETURNING t.run, t.epoch, l.due
    )
    SELECT coalesce(array_agg(run), '{}'), coalesce(array_agg(0), '{}'), coalesce(array_agg(epoch), '{}'), false
      INTO v_taken.runs, v_taken.units, v_taken.epochs, v_taken.due
      FROM decremented WHERE due;
    RETURN v_taken;
END $$;

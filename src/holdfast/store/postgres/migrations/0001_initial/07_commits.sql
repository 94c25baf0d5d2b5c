-- What a turn writes of its own run.

-- A batch of commits of different runs. p_c_* has one entry for each commit, p_f_*, p_d_*, p_l_* and p_o_* one for each
-- fact, delivery, log line and event of the outbox, with the number of its commit and, where that matters, what that
-- commit must have come to for it to be written.
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
    p_l_data BYTEA[], p_l_at BIGINT[], p_l_step_key BYTEA[], p_l_attempt BIGINT[], p_l_is_replay BOOLEAN[],
    p_o_commit INTEGER[], p_o_type BYTEA[], p_o_payload BYTEA[], p_o_step BYTEA[]
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

    IF cardinality(p_o_commit) > 0 THEN
        v_told := {schema}.holdfast_put_out(
            v_now, ARRAY(SELECT CASE WHEN v_state[o.c] > 0 THEN p_c_run[o.c] END
                           FROM unnest(p_o_commit) WITH ORDINALITY AS o (c, ord) ORDER BY o.ord),
            p_o_type, p_o_payload, p_o_step);
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

        DELETE FROM {schema}.holdfast_task AS t
         USING unnest(v_state, p_c_run, p_c_next) AS a (state, run, next)
         WHERE t.run = a.run AND a.state = 3 AND a.next = 1;
        v_told := v_told OR FOUND;
        PERFORM {schema}.holdfast_hold_units(a.run)
           FROM unnest(v_state, p_c_run, p_c_next) AS a (state, run, next)
          WHERE a.state = 2 OR (a.state = 3 AND a.next = 2);

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
            SELECT jsonb_object_agg(by, jsonb_build_object('ended', ended, 'woken', woken, 'work', due))::text
              INTO v_more
              FROM (SELECT by, array_agg(ended) FILTER (WHERE ended IS NOT NULL) AS ended,
                           array_agg(DISTINCT woken) FILTER (WHERE woken IS NOT NULL) AS woken, bool_or(due) AS due
                      FROM {schema}.holdfast_ended(v_now, v_bound) GROUP BY by) AS e;
        END IF;

        v_told := v_told OR EXISTS (
            SELECT FROM unnest(v_state, p_c_next, p_c_run_at, v_due) AS a (state, next, run_at, due)
             WHERE a.state = 2 OR (a.state = 3 AND (a.next = 2 OR a.due OR (a.next = 3 AND a.run_at <= v_now))));
    END IF;
    IF v_told THEN
        PERFORM pg_notify('{channel}', p_by);
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
-- there is more to it: a signal, losses, an end that concerns others or units; 1 done; 2 done, and the task is due at
-- once.
-- It leaves no receipt: the fact itself tells by p_token that it was done. p_line and p_n: an earlier try may have been,
-- here or, with that receipt, the long way.
-- p_quiet: no other store listens.
CREATE FUNCTION {schema}.holdfast_commit_one(
    p_by TEXT, p_run BIGINT, p_unit BIGINT, p_owner TEXT, p_epoch BIGINT,
    p_state INTEGER, p_key BYTEA, p_fact_n BIGINT, p_kind TEXT, p_at BIGINT, p_started_at BIGINT, p_seq BIGINT,
    p_ok BOOLEAN, p_value BYTEA, p_name BYTEA, p_attempts BIGINT, p_max_attempts BIGINT, p_timeout_ms BIGINT,
    p_run_started_at BIGINT, p_next INTEGER, p_status TEXT, p_output BYTEA, p_token BIGINT, p_quiet BOOLEAN,
    -- what it seldom has: each argument takes its time
    p_wake_at BIGINT = NULL, p_event_type TEXT = NULL, p_event BIGINT = NULL,
    p_d_event BIGINT = NULL, p_d_key BYTEA = NULL, p_d_at BIGINT = NULL, p_error BYTEA = NULL, p_note BYTEA = NULL,
    p_run_at BIGINT = NULL, p_task_kind INTEGER = NULL, p_bucket INTEGER = NULL, p_topics TEXT = NULL,
    p_seen BIGINT = NULL, p_line INTEGER = NULL, p_n BIGINT = NULL, p_now BIGINT = NULL
) RETURNS INTEGER LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_due BOOLEAN := false;
BEGIN
    IF p_line IS NOT NULL THEN
        -- A try still under way has the lock. What the long way has done is told by its receipt.
        PERFORM FROM {schema}.holdfast_task WHERE run = p_run AND unit = p_unit FOR NO KEY UPDATE;
        IF EXISTS (SELECT FROM {schema}.holdfast_fact
                    WHERE run = p_run AND state = p_state AND key = p_key AND n = p_fact_n
                      AND written_by = p_token) THEN
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
           AND losses = 0 AND NOT bound AND missing IS NULL;
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

-- An event, and the turn that it causes in a run that waits for it (Foreseen): the result of that wait, and an end, a rest
-- or the claim of who goes on. False, and nothing is done, if the run is not as p_epoch and p_n expect it, or p_at is not
-- about now (ABOUT_NOW_MS); where that is seen too late to do nothing, an error (HF003, 23505). One transaction in place
-- of two, and half the rows. The fact tells by p_token that it was done, as that of a short commit does; so only a key of
-- the sender's own has to be remembered. p_next: as there.
CREATE FUNCTION {schema}.holdfast_send_foreseen(
    p_by TEXT, p_run BIGINT, p_epoch BIGINT, p_n BIGINT, p_at BIGINT, p_type TEXT, p_payload BYTEA, p_token BIGINT,
    p_key BYTEA, p_kind TEXT, p_started_at BIGINT, p_seq BIGINT, p_wake_at BIGINT,
    p_next INTEGER, p_status TEXT, p_output BYTEA, p_quiet BOOLEAN,
    -- what it seldom has
    p_error BYTEA = NULL, p_note BYTEA = NULL, p_run_at BIGINT = NULL, p_task_kind INTEGER = NULL,
    p_bucket INTEGER = NULL, p_topics TEXT = NULL, p_sender BYTEA = NULL, p_dedup BYTEA = NULL, p_owner TEXT = NULL,
    p_lease_ms BIGINT = NULL, p_now BIGINT = NULL
) RETURNS BOOLEAN LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_line BIGINT;
BEGIN
    IF abs(v_now - p_at) > 200 OR (p_dedup IS NOT NULL AND EXISTS (
        SELECT FROM {schema}.holdfast_event
         WHERE line = (SELECT coalesce(line, id) FROM {schema}.holdfast_run WHERE id = p_run) AND dedup = p_dedup)) THEN
        RETURN false;
    END IF;
    IF p_next = 1 THEN
        DELETE FROM {schema}.holdfast_task
         WHERE run = p_run AND unit = 0 AND owner IS NULL AND epoch = p_epoch - 1 AND signal = 0 AND losses = 0
           AND (run_at > v_now OR run_at IS NULL) AND NOT bound AND missing IS NULL;
    ELSIF p_next = 3 THEN
        UPDATE {schema}.holdfast_task
           SET epoch = p_epoch, topics = p_topics, run_at = p_run_at, kind = p_task_kind, bucket = p_bucket
         WHERE run = p_run AND unit = 0 AND owner IS NULL AND epoch = p_epoch - 1 AND signal = 0 AND losses = 0
           AND (run_at > v_now OR run_at IS NULL);
    ELSE
        UPDATE {schema}.holdfast_task
           SET epoch = p_epoch, owner = p_owner, lease_until = v_now + p_lease_ms, lease_ms = NULL,
               claimed_by = p_token, run_at = v_now, kind = 0, bucket = 0
         WHERE run = p_run AND unit = 0 AND owner IS NULL AND epoch = p_epoch - 1 AND signal = 0 AND losses = 0
           AND (run_at > v_now OR run_at IS NULL);
    END IF;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF p_next = 1 THEN
        UPDATE {schema}.holdfast_run
           SET updated_at = v_now, status = p_status, note = p_note, output = p_output, error = p_error,
               completed_at = v_now
         WHERE id = p_run AND status = 'waiting' RETURNING coalesce(line, id) INTO v_line;
    ELSE
        UPDATE {schema}.holdfast_run SET updated_at = v_now, status = coalesce(p_status, 'active')
         WHERE id = p_run AND status = 'waiting' RETURNING coalesce(line, id) INTO v_line;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'not as foreseen' USING ERRCODE = 'HF003';
    END IF;
    -- With the task locked, the number is free only if nothing else has come.
    INSERT INTO {schema}.holdfast_event (run, n, type, payload, created_at, sender, delivered_at, consumed_by, dedup,
                                         sent_by, line)
    VALUES (p_run, p_n, p_type, p_payload, p_at, p_sender, p_at, p_key, p_dedup, p_token,
            CASE WHEN p_dedup IS NOT NULL THEN v_line END);
    INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, attempts, wake_at, event_type,
                                        event, written_by)
    VALUES (p_run, 0, p_key, 0, p_kind, p_at, p_started_at, p_seq, true, 0, p_wake_at, p_type, p_n, p_token);
    IF NOT p_quiet AND (p_next = 1 OR (p_next = 3 AND p_run_at <= v_now)) THEN
        PERFORM pg_notify('{channel}', p_by);
    END IF;
    RETURN true;
END $$;

-- Whether an earlier try has done that. One that is under way is waited for.
CREATE FUNCTION {schema}.holdfast_was_foreseen(p_run BIGINT, p_key BYTEA, p_token BIGINT) RETURNS BOOLEAN
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
    PERFORM FROM {schema}.holdfast_task WHERE run = p_run AND unit = 0 FOR NO KEY UPDATE;
    RETURN EXISTS (SELECT FROM {schema}.holdfast_fact
                    WHERE run = p_run AND state = 0 AND key = p_key AND n = 0 AND written_by = p_token);
END $$;

-- Commits: the rows that turns write for their own runs.

-- Apply a batch of commits of different runs. p_c_* have one entry for each commit; p_f_*, p_d_*, p_l_* and p_o_* have
-- one for each fact, delivery, log line and outbound event, with the number of its commit. p_f_needs and p_l_needs hold
-- the lowest verdict with which the row is written.
-- Verdicts: 0 lost, 1 pausing (steps are in flight), 2 paused, 3 applied, with the following part.
-- p_c_next: 0 keep the task, 1 finish, 2 park, 3 release.
-- p_line and p_n name the receipt; NULL if the caller can find out otherwise whether its transaction was committed.
CREATE OR REPLACE FUNCTION {schema}.holdfast_commit(
    p_now BIGINT, p_store TEXT, p_line INTEGER, p_n BIGINT,
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
    v_verdict INTEGER[] := array_fill(0, ARRAY[cardinality(p_c_run)]);
    v_signal INTEGER[] := v_verdict;
    v_losses INTEGER[] := v_verdict;
    v_due BOOLEAN[] := array_fill(false, ARRAY[cardinality(p_c_run)]);
    v_task RECORD;
    v_bound BIGINT[];
    v_more TEXT;
    v_notify BOOLEAN := false;
    v_count BIGINT;
    v_receipt {schema}.holdfast_receipt;
BEGIN
    -- If the end of a run affects others, lock everything that changes at once, in lock order.
    SELECT array_agg(t.run) INTO v_bound FROM {schema}.holdfast_task AS t
     WHERE t.run = ANY (ARRAY(SELECT a.run FROM unnest(p_c_run, p_c_next) AS a (run, next) WHERE a.next = 1))
       AND t.unit = 0 AND t.bound;
    IF v_bound IS NOT NULL THEN
        PERFORM {schema}.holdfast_lock_affected(v_bound, p_c_run);
        v_bound := NULL;
    END IF;

    -- The fence: lock the task, provided that run, unit, owner and epoch are those of the claim.
    -- IS TRUE keeps the planner off the index by owner, which would read all tasks of the owner for each commit.
    FOR v_task IN
        SELECT a.ord, a.run, a.in_flight, a.next, t.signal, t.losses, t.bound
          FROM unnest(p_c_run, p_c_unit, p_c_owner, p_c_epoch, p_c_in_flight, p_c_next)
               WITH ORDINALITY AS a (run, unit, owner, epoch, in_flight, next, ord)
          JOIN {schema}.holdfast_task AS t
            ON t.run = a.run AND t.unit = a.unit AND (t.owner = a.owner) IS TRUE AND t.epoch = a.epoch
         ORDER BY a.run FOR NO KEY UPDATE OF t
    LOOP
        v_signal[v_task.ord] := v_task.signal;
        v_losses[v_task.ord] := v_task.losses;
        v_verdict[v_task.ord] := CASE WHEN v_task.signal & 2 = 0 THEN 3 WHEN v_task.in_flight = 0 THEN 2 ELSE 1 END;
        IF v_task.bound AND v_task.next = 1 AND v_verdict[v_task.ord] = 3 THEN
            v_bound := v_bound || v_task.run;
        END IF;
    END LOOP;

    -- Read the receipt under the locks: an earlier attempt of this call may have held them until now.
    SELECT * INTO v_receipt FROM {schema}.holdfast_receipt WHERE store = p_store AND line = p_line AND n >= p_n;
    IF FOUND THEN
        IF v_receipt.n > p_n THEN
            RAISE EXCEPTION 'stale retry: a later commit was written under this receipt' USING ERRCODE = 'HF002';
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
         WHERE v_verdict[f.c] >= f.needs;
    END IF;

    IF cardinality(p_d_commit) > 0 THEN
        UPDATE {schema}.holdfast_event AS e SET delivered_at = d.at, consumed_by = d.key
          FROM unnest(p_d_commit, p_d_event, p_d_key, p_d_at) AS d (c, event, key, at)
         WHERE e.run = p_c_run[d.c] AND e.n = d.event AND e.delivered_at IS NULL AND v_verdict[d.c] > 0;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        IF v_count <> (SELECT count(*) FROM unnest(p_d_commit) AS d (c) WHERE v_verdict[d.c] > 0) THEN
            RAISE EXCEPTION 'an event cannot be consumed: it does not exist or was consumed before'
                USING ERRCODE = 'HF001';
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
         WHERE v_verdict[l.c] >= l.needs;
    END IF;

    IF cardinality(p_o_commit) > 0 THEN
        v_notify := {schema}.holdfast_outbox_add(
            v_now, ARRAY(SELECT CASE WHEN v_verdict[o.c] > 0 THEN p_c_run[o.c] END
                           FROM unnest(p_o_commit) WITH ORDINALITY AS o (c, ord) ORDER BY o.ord),
            p_o_type, p_o_payload, p_o_step);
    END IF;

    -- The most common commit leaves its run and task unchanged and skips this part.
    IF EXISTS (SELECT FROM unnest(v_verdict, p_c_next, p_c_started_at, v_signal, v_losses)
                 AS a (verdict, next, started_at, signal, losses)
                WHERE a.verdict > 0 AND (a.next > 0 OR a.verdict < 3 OR a.started_at IS NOT NULL OR a.signal <> 0
                                       OR a.losses <> 0)) THEN
        -- Due at once: an event that the turn has not read matches the topics that it waits for.
        SELECT array_agg(a.verdict = 3 AND a.next = 3 AND EXISTS (
                   SELECT FROM {schema}.holdfast_event AS e
                    WHERE e.run = a.run AND e.n > a.seen AND e.delivered_at IS NULL
                      AND {schema}.holdfast_matches_topics(e.type, a.topics)) ORDER BY a.ord)
          INTO v_due
          FROM unnest(v_verdict, p_c_next, p_c_run, p_c_seen, p_c_topics)
               WITH ORDINALITY AS a (verdict, next, run, seen, topics, ord);

        DELETE FROM {schema}.holdfast_task AS t
         USING unnest(v_verdict, p_c_run, p_c_next) AS a (verdict, run, next)
         WHERE t.run = a.run AND a.verdict = 3 AND a.next = 1;
        v_notify := v_notify OR FOUND;
        PERFORM {schema}.holdfast_pause_units(a.run)
           FROM unnest(v_verdict, p_c_run, p_c_next) AS a (verdict, run, next)
          WHERE a.verdict = 2 OR (a.verdict = 3 AND a.next = 2);

        UPDATE {schema}.holdfast_run AS r
           SET started_at = coalesce(r.started_at, a.started_at), updated_at = v_now,
               status = CASE WHEN a.effect IN (1, 3) THEN a.status WHEN a.effect = 2 THEN 'paused' ELSE r.status END,
               note = CASE WHEN a.effect IN (1, 2) THEN a.note ELSE r.note END,
               output = CASE WHEN a.effect = 1 THEN a.output ELSE r.output END,
               error = CASE WHEN a.effect = 1 THEN a.error ELSE r.error END,
               completed_at = CASE WHEN a.effect = 1 THEN v_now ELSE r.completed_at END
          FROM (SELECT a.*, CASE a.verdict WHEN 3 THEN a.next WHEN 2 THEN 2 ELSE 0 END AS effect
                  FROM unnest(v_verdict, p_c_run, p_c_next, p_c_started_at, p_c_status, p_c_output, p_c_error,
                              -- a requested pause has no note
                              ARRAY(SELECT CASE WHEN v = 3 THEN n END FROM unnest(v_verdict, p_c_note) AS x (v, n)))
                       AS a (verdict, run, next, started_at, status, output, error, note)
                 WHERE a.verdict > 0) AS a
         WHERE r.id = a.run AND (a.effect > 0 OR (a.started_at IS NOT NULL AND r.started_at IS NULL));

        UPDATE {schema}.holdfast_task AS t
           SET owner = CASE WHEN a.effect = 0 THEN t.owner END,
               lease_until = CASE WHEN a.effect = 0 THEN t.lease_until END,
               run_at = CASE a.effect WHEN 0 THEN t.run_at WHEN 3 THEN CASE WHEN a.due THEN v_now ELSE a.run_at END END,
               kind = CASE WHEN a.effect <> 3 THEN t.kind WHEN a.due THEN 0 ELSE a.kind END,
               bucket = CASE WHEN a.effect <> 3 THEN t.bucket WHEN a.due THEN 0 ELSE a.bucket END,
               topics = CASE WHEN a.effect = 3 THEN a.topics ELSE t.topics END,
               losses = CASE WHEN a.effect > 0 OR a.progress THEN 0 ELSE t.losses END,
               signal = CASE WHEN a.effect > 0 THEN 0 WHEN a.verdict = 1 THEN t.signal ELSE t.signal & ~1 END
          FROM (SELECT a.*, CASE a.verdict WHEN 3 THEN a.next WHEN 2 THEN 2 ELSE 0 END AS effect
                  FROM unnest(v_verdict, p_c_run, p_c_unit, p_c_next, p_c_run_at, p_c_kind, p_c_bucket, p_c_topics,
                              p_c_progress, v_due)
                       AS a (verdict, run, unit, next, run_at, kind, bucket, topics, progress, due)
                 WHERE a.verdict > 0) AS a
         WHERE t.run = a.run AND t.unit = a.unit AND a.effect <> 1
           AND (a.effect > 0 OR (a.progress AND t.losses <> 0) OR (a.verdict = 3 AND t.signal & 1 <> 0));

        IF v_bound IS NOT NULL THEN  -- after the releases: a watcher may be in the same batch
            SELECT jsonb_object_agg(by, jsonb_build_object('ended', ended, 'woken', woken, 'work', due))::text
              INTO v_more
              FROM (SELECT by, array_agg(ended) FILTER (WHERE ended IS NOT NULL) AS ended,
                           array_agg(DISTINCT woken) FILTER (WHERE woken IS NOT NULL) AS woken, bool_or(due) AS due
                      FROM {schema}.holdfast_propagate_ends(v_now, v_bound) GROUP BY by) AS e;
        END IF;

        v_notify := v_notify OR EXISTS (
            SELECT FROM unnest(v_verdict, p_c_next, p_c_run_at, v_due) AS a (verdict, next, run_at, due)
             WHERE a.verdict = 2 OR (a.verdict = 3 AND (a.next = 2 OR a.due OR (a.next = 3 AND a.run_at <= v_now))));
    END IF;
    IF v_notify THEN
        PERFORM pg_notify('{channel}', p_store);
    END IF;

    SELECT array_agg(CASE WHEN v = 3 AND x = 0 THEN s ELSE 0 END ORDER BY o) INTO v_signal
      FROM unnest(v_verdict, p_c_next, v_signal) WITH ORDINALITY AS a (v, x, s, o);
    IF p_line IS NOT NULL THEN
        INSERT INTO {schema}.holdfast_receipt (store, line, n, at, verdicts, signals, due, more)
        VALUES (p_store, p_line, p_n, v_now, v_verdict, v_signal, v_due, v_more)
        ON CONFLICT (store, line) DO UPDATE
           SET n = excluded.n, at = excluded.at, verdicts = excluded.verdicts, signals = excluded.signals,
               due = excluded.due, more = excluded.more;
    END IF;
    RETURN QUERY SELECT v_verdict, v_signal, v_due, v_more;
END $$;

-- Apply the most common commit: one fact and at most one delivery, after which the turn keeps the task, waits or ends
-- the run. Half the time of holdfast_commit, which unnests fifty arrays. p_next: as p_c_next there. Returns 0 if
-- nothing was written because the commit needs holdfast_commit (a signal, losses, units, or an end that affects other
-- runs), 1 if it was applied, 2 if it was applied and the task is due at once. Writes no receipt: a retry recognises
-- the fact by p_token. p_line and p_n are set in a retry: an earlier attempt may have been applied here, or by
-- holdfast_commit under that receipt.
CREATE OR REPLACE FUNCTION {schema}.holdfast_commit_one(
    p_store TEXT, p_run BIGINT, p_unit BIGINT, p_owner TEXT, p_epoch BIGINT,
    p_state INTEGER, p_key BYTEA, p_fact_n BIGINT, p_kind TEXT, p_at BIGINT, p_started_at BIGINT, p_seq BIGINT,
    p_ok BOOLEAN, p_value BYTEA, p_name BYTEA, p_attempts BIGINT, p_max_attempts BIGINT, p_timeout_ms BIGINT,
    p_run_started_at BIGINT, p_next INTEGER, p_status TEXT, p_output BYTEA, p_token BIGINT,
    -- rarely used: each argument costs time
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
        -- The lock waits for an attempt that is still running. holdfast_commit leaves a receipt.
        PERFORM FROM {schema}.holdfast_task WHERE run = p_run AND unit = p_unit FOR NO KEY UPDATE;
        IF EXISTS (SELECT FROM {schema}.holdfast_fact
                    WHERE run = p_run AND state = p_state AND key = p_key AND n = p_fact_n
                      AND written_by = p_token) THEN
            RETURN CASE WHEN p_next = 3 AND EXISTS (
                SELECT FROM {schema}.holdfast_task
                 WHERE run = p_run AND unit = p_unit AND owner IS NULL AND run_at <= v_now) THEN 2 ELSE 1 END;
        ELSIF EXISTS (SELECT FROM {schema}.holdfast_receipt WHERE store = p_store AND line = p_line AND n >= p_n) THEN
            RETURN 0;
        END IF;
    END IF;
    -- The condition of each statement is the fence.
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
    IF p_next = 3 THEN  -- checked under the task's lock, so no event can arrive in between
        v_due := EXISTS (SELECT FROM {schema}.holdfast_event
                          WHERE run = p_run AND n > p_seen AND delivered_at IS NULL AND n IS DISTINCT FROM p_d_event
                            AND {schema}.holdfast_matches_topics(type, p_topics));
    END IF;
    INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, value, name, attempts,
                                        max_attempts, timeout_ms, wake_at, event_type, event, written_by)
    VALUES (p_run, p_state, p_key, p_fact_n, p_kind, p_at, p_started_at, p_seq, p_ok, p_value, p_name, p_attempts,
            p_max_attempts, p_timeout_ms, p_wake_at, p_event_type, p_event, p_token);
    IF p_d_event IS NOT NULL THEN
        UPDATE {schema}.holdfast_event SET delivered_at = p_d_at, consumed_by = p_d_key
         WHERE run = p_run AND n = p_d_event AND delivered_at IS NULL;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'an event cannot be consumed: it does not exist or was consumed before'
                USING ERRCODE = 'HF001';
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
    IF p_next = 1 OR v_due OR (p_next = 3 AND p_run_at <= v_now) THEN
        PERFORM pg_notify('{channel}', p_store);
    END IF;
    RETURN CASE WHEN v_due THEN 2 ELSE 1 END;
END $$;

-- Write an event together with the turn that it causes in a waiting run (Prediction): the result of the wait, and the
-- end of the run, a release or the claim of the worker that continues. Returns false, and writes nothing, if the run is
-- not in the state that p_epoch and p_n predict, or if p_at differs from now by more than MAX_CLOCK_SKEW_MS; raises
-- HF003 or 23505 if that is found after the first write. One transaction instead of two, and half the rows. A retry
-- recognises the fact by p_token, as with holdfast_commit_one; so p_dedup is set only if the sender gave a key. p_next:
-- as p_c_next of holdfast_commit.
CREATE OR REPLACE FUNCTION {schema}.holdfast_send_predicted(
    p_store TEXT, p_run BIGINT, p_epoch BIGINT, p_n BIGINT, p_at BIGINT, p_type TEXT, p_payload BYTEA, p_token BIGINT,
    p_key BYTEA, p_kind TEXT, p_started_at BIGINT, p_seq BIGINT, p_wake_at BIGINT,
    p_next INTEGER, p_status TEXT, p_output BYTEA,
    -- rarely used
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
        RAISE EXCEPTION 'the prediction does not hold' USING ERRCODE = 'HF003';
    END IF;
    -- Under the task's lock, the number is free only if no other event has arrived.
    INSERT INTO {schema}.holdfast_event (run, n, type, payload, created_at, sender, delivered_at, consumed_by, dedup,
                                         sent_by, line)
    VALUES (p_run, p_n, p_type, p_payload, p_at, p_sender, p_at, p_key, p_dedup, p_token,
            CASE WHEN p_dedup IS NOT NULL THEN v_line END);
    INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, attempts, wake_at,
                                        event_type, event, written_by)
    VALUES (p_run, 0, p_key, 0, p_kind, p_at, p_started_at, p_seq, true, 0, p_wake_at, p_type, p_n, p_token);
    IF p_next = 1 OR (p_next = 3 AND p_run_at <= v_now) THEN
        PERFORM pg_notify('{channel}', p_store);
    END IF;
    RETURN true;
END $$;

-- True if an earlier attempt of the call wrote the prediction. Waits for an attempt that is still running.
CREATE OR REPLACE FUNCTION {schema}.holdfast_prediction_written(p_run BIGINT, p_key BYTEA, p_token BIGINT) RETURNS BOOLEAN
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
    PERFORM FROM {schema}.holdfast_task WHERE run = p_run AND unit = 0 FOR NO KEY UPDATE;
    RETURN EXISTS (SELECT FROM {schema}.holdfast_fact
                    WHERE run = p_run AND state = 0 AND key = p_key AND n = 0 AND written_by = p_token);
END $$;

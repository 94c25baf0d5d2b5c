-- Commits: the rows that turns write for their own runs.

-- Apply a batch of commits of different runs. p_c_* have one entry for each commit; p_f_*, p_d_*, p_l_* and p_o_* have
-- one for each fact, delivery, log line and outbound event, with the number of its commit. p_f_needs and p_l_needs hold
-- the lowest verdict (VerdictNumber) with which the row is written. p_c_next: a Next.
-- p_sequence and p_n name the receipt; NULL if the caller can find out otherwise whether its transaction was committed.
--
-- The parts of this function are called by assignments: PL/pgSQL evaluates an assignment without a query, a PERFORM
-- with one.
CREATE OR REPLACE FUNCTION {schema}.holdfast_commit(
    p_now BIGINT, p_store TEXT, p_sequence INTEGER, p_n BIGINT, {commit.parameters}
) RETURNS TABLE (verdicts INTEGER[], signals INTEGER[], due BOOLEAN[], more TEXT) LANGUAGE plpgsql
{planner.nested_loops} AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_fence RECORD;
    v_verdict INTEGER[];
    v_due BOOLEAN[] := array_fill(false, ARRAY[cardinality(p_c_run)]);
    v_notify BOOLEAN := false;
    v_more TEXT;
    v_receipt {schema}.holdfast_receipt;
    v_count BIGINT;
BEGIN
    IF {Next.FINISH} = ANY (p_c_next) THEN
        v_count := {schema}.holdfast_lock_bound_ends(p_c_run, p_c_next);
    END IF;
    v_fence := {schema}.holdfast_fence_commits(p_c_run, p_c_unit, p_c_owner, p_c_epoch, p_c_in_flight, p_c_started_at,
                                               p_c_next);
    v_verdict := v_fence.verdict;
    -- Read the receipt under the locks: an earlier attempt of this call may have held them until now.
    v_receipt := {schema}.holdfast_find_receipt(p_store, p_sequence, p_n);
    IF v_receipt.n IS NOT NULL THEN
        RETURN QUERY SELECT v_receipt.verdicts, v_receipt.signals, v_receipt.due, v_receipt.more;
        RETURN;
    END IF;

    IF cardinality(p_f_commit) > 0 THEN
        INSERT INTO {schema}.holdfast_fact (run, {fact.columns})
        SELECT p_c_run[f.commit], {fact.columns f} FROM {commit.facts.rows} WHERE v_verdict[f.commit] >= f.needs;
    END IF;
    IF cardinality(p_d_commit) > 0 THEN
        v_count := {schema}.holdfast_consume_events(
            ARRAY(SELECT CASE WHEN v_verdict[d.commit] > {VerdictNumber.LOST} THEN p_c_run[d.commit] END
                    FROM unnest(p_d_commit) WITH ORDINALITY AS d (commit, ord) ORDER BY d.ord),
            p_d_event, p_d_key, p_d_at);
    END IF;
    IF cardinality(p_l_commit) > 0 THEN
        v_count := {schema}.holdfast_add_logs(
            ARRAY(SELECT CASE WHEN v_verdict[l.commit] >= l.needs THEN p_c_run[l.commit] END
                    FROM unnest(p_l_commit, p_l_needs) WITH ORDINALITY AS l (commit, needs, ord) ORDER BY l.ord),
            {plain.logs.names});
    END IF;
    IF cardinality(p_o_commit) > 0 THEN
        v_notify := {schema}.holdfast_outbox_add(
            v_now, ARRAY(SELECT CASE WHEN v_verdict[o.commit] > {VerdictNumber.LOST} THEN p_c_run[o.commit] END
                           FROM unnest(p_o_commit) WITH ORDINALITY AS o (commit, ord) ORDER BY o.ord),
            p_o_type, p_o_payload, p_o_step, p_o_trace);
    END IF;
    IF {FactState.SETTLEMENT} = ANY (p_f_state) THEN
        PERFORM pg_notify('{channel}', 'stream ' || p_store);
    END IF;
    IF v_fence.changes THEN  -- the most common commit leaves its run and task unchanged
        IF {Next.RELEASE} = ANY (v_fence.next) THEN
            v_due := {schema}.holdfast_find_due(v_fence.next, p_c_run, p_c_seen, p_c_topics);
        END IF;
        v_notify := {schema}.holdfast_change_tasks(
            v_now, v_verdict, v_fence.next, v_due, {commit.commits.names}) OR v_notify;
        IF v_fence.bound IS NOT NULL THEN  -- after the releases: a watcher may be in the same batch
            v_more := {schema}.holdfast_ends_as_json(v_now, v_fence.bound);
        END IF;
    END IF;
    IF v_notify THEN
        PERFORM pg_notify('{channel}', p_store);
    END IF;
    IF p_sequence IS NOT NULL THEN
        v_count := {schema}.holdfast_write_receipt(
            p_store, p_sequence, p_n, v_now, v_verdict, v_fence.signal, v_due, v_more, NULL);
        -- The lock of permits is the last one that this transaction takes: it calls nothing else that locks tasks.
        IF {Next.FINISH} = ANY (v_fence.next) THEN
            v_count := {schema}.holdfast_return_permits_of(p_c_run, v_fence.next);
        END IF;
    END IF;
    RETURN QUERY SELECT v_verdict, v_fence.signal, v_due, v_more;
END $$;

-- The fence: lock the task of each commit, provided that run, unit, owner and epoch are those of the claim. IS TRUE
-- keeps the planner off the index by owner, which would read all tasks of the owner for each commit.
-- Returns for each commit its verdict (VerdictNumber), what happens to its task (next), and the signals that the turn
-- gets. bound: runs that end and may affect others. changes: true if any task or run has to be changed.
CREATE OR REPLACE FUNCTION {schema}.holdfast_fence_commits(
    p_run BIGINT[], p_unit BIGINT[], p_owner TEXT[], p_epoch BIGINT[], p_in_flight BIGINT[], p_started_at BIGINT[],
    p_next INTEGER[],
    OUT verdict INTEGER[], OUT next INTEGER[], OUT signal INTEGER[], OUT bound BIGINT[], OUT changes BOOLEAN
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_task RECORD;
BEGIN
    verdict := array_fill({VerdictNumber.LOST}, ARRAY[cardinality(p_run)]);
    next := array_fill({Next.KEEP}, ARRAY[cardinality(p_run)]);
    signal := array_fill({Signal.NONE}, ARRAY[cardinality(p_run)]);
    changes := false;
    FOR v_task IN
        SELECT a.ord, a.run, a.in_flight, a.started_at, a.next, t.signal, t.losses, t.bound
          FROM unnest(p_run, p_unit, p_owner, p_epoch, p_in_flight, p_started_at, p_next)
               WITH ORDINALITY AS a (run, unit, owner, epoch, in_flight, started_at, next, ord)
          JOIN {schema}.holdfast_task AS t
            ON t.run = a.run AND t.unit = a.unit AND (t.owner = a.owner) IS TRUE AND t.epoch = a.epoch
         ORDER BY a.run FOR NO KEY UPDATE OF t
    LOOP
        IF v_task.signal & {Signal.PAUSE} = 0 THEN
            verdict[v_task.ord] := {VerdictNumber.APPLIED};
            next[v_task.ord] := v_task.next;
            IF v_task.next = {Next.KEEP} THEN
                signal[v_task.ord] := v_task.signal;
            ELSIF v_task.next = {Next.FINISH} AND v_task.bound THEN
                bound := bound || v_task.run;
            END IF;
        ELSIF v_task.in_flight = 0 THEN
            verdict[v_task.ord] := {VerdictNumber.PAUSED};
            next[v_task.ord] := {Next.PARK};
        ELSE
            verdict[v_task.ord] := {VerdictNumber.PAUSING};
        END IF;
        changes := changes OR v_task.next <> {Next.KEEP} OR v_task.started_at IS NOT NULL OR v_task.signal <> 0
                     OR v_task.losses <> 0;
    END LOOP;
END $$;

-- If the end of a run affects others, lock everything that changes at once, in lock order.
CREATE OR REPLACE FUNCTION {schema}.holdfast_lock_bound_ends(p_run BIGINT[], p_next INTEGER[]) RETURNS BIGINT
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_bound BIGINT[];
BEGIN
    SELECT array_agg(t.run) INTO v_bound FROM {schema}.holdfast_task AS t
     WHERE t.run = ANY (ARRAY(SELECT a.run FROM unnest(p_run, p_next) AS a (run, next)
                               WHERE a.next = {Next.FINISH}))
       AND t.unit = 0 AND t.bound;
    IF v_bound IS NOT NULL THEN
        PERFORM {schema}.holdfast_lock_affected(v_bound, p_run);
    END IF;
    RETURN cardinality(v_bound);
END $$;

-- The receipt of an earlier attempt of a call; NULL if there is none. The tasks of the call must be locked.
CREATE OR REPLACE FUNCTION {schema}.holdfast_find_receipt(p_store TEXT, p_sequence INTEGER, p_n BIGINT)
RETURNS {schema}.holdfast_receipt LANGUAGE plpgsql AS $$
DECLARE
    v_receipt {schema}.holdfast_receipt;
BEGIN
    SELECT * INTO v_receipt FROM {schema}.holdfast_receipt WHERE store = p_store AND sequence = p_sequence AND n >= p_n;
    IF v_receipt.n > p_n THEN
        RAISE EXCEPTION 'stale retry: a later call was made under this receipt' USING ERRCODE = {STALE_RETRY};
    END IF;
    RETURN v_receipt;
END $$;

CREATE OR REPLACE FUNCTION {schema}.holdfast_write_receipt(
    p_store TEXT, p_sequence INTEGER, p_n BIGINT, p_at BIGINT, p_verdicts INTEGER[], p_signals INTEGER[], p_due BOOLEAN[],
    p_more TEXT, p_taken BIGINT[]
) RETURNS BIGINT LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.holdfast_receipt (store, sequence, n, at, verdicts, signals, due, more, taken)
    VALUES (p_store, p_sequence, p_n, p_at, p_verdicts, p_signals, p_due, p_more, p_taken)
    ON CONFLICT (store, sequence) DO UPDATE
       SET n = excluded.n, at = excluded.at, verdicts = excluded.verdicts, signals = excluded.signals,
           due = excluded.due, more = excluded.more, taken = excluded.taken;
    RETURN p_n;
END $$;

-- Mark events of runs whose tasks are locked as consumed. Entries whose p_run is NULL are skipped. Returns the
-- number of consumed events.
CREATE OR REPLACE FUNCTION {schema}.holdfast_consume_events(
    p_run BIGINT[], p_event BIGINT[], p_key BYTEA[], p_at BIGINT[]
) RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    v_count BIGINT;
BEGIN
    UPDATE {schema}.holdfast_event AS e SET delivered_at = d.at, consumed_by = d.key
      FROM unnest(p_run, p_event, p_key, p_at) AS d (run, event, key, at)
     WHERE e.run = d.run AND e.n = d.event AND e.delivered_at IS NULL;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count <> (SELECT count(d.run) FROM unnest(p_run) AS d (run)) THEN
        RAISE EXCEPTION 'an event cannot be consumed: it does not exist or was consumed before'
            USING ERRCODE = {NOT_CONSUMABLE};
    END IF;
    RETURN v_count;
END $$;

-- Append lines to the logs of runs whose tasks are locked. Entries whose p_run is NULL are skipped. Returns the
-- number of lines.
CREATE OR REPLACE FUNCTION {schema}.holdfast_add_logs(p_run BIGINT[], {plain.logs.parameters}) RETURNS BIGINT
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_count BIGINT;
BEGIN
    INSERT INTO {schema}.holdfast_log (run, n, {log.columns})
    SELECT l.run, coalesce((SELECT max(n) FROM {schema}.holdfast_log WHERE run = l.run), 0)
               + row_number() OVER (PARTITION BY l.run ORDER BY l.ord), {log.columns l}
      FROM unnest(p_run, {plain.logs.names}) WITH ORDINALITY AS l (run, {log.columns}, ord)
     WHERE l.run IS NOT NULL;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- For each commit: true if the task is released and an event that the turn has not read matches the topics that it
-- waits for, so that the task is due at once.
CREATE OR REPLACE FUNCTION {schema}.holdfast_find_due(
    p_next INTEGER[], p_run BIGINT[], p_seen BIGINT[], p_topics TEXT[]
) RETURNS BOOLEAN[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT array_agg(a.next = {Next.RELEASE} AND EXISTS (
                       SELECT FROM {schema}.holdfast_event AS e
                        WHERE e.run = a.run AND e.n > a.seen AND e.delivered_at IS NULL
                          AND {schema}.holdfast_matches_topics(e.type, a.topics)) ORDER BY a.ord)
              FROM unnest(p_next, p_run, p_seen, p_topics) WITH ORDINALITY AS a (next, run, seen, topics, ord));
END $$;

-- Finish, park and release the tasks of commits, and update their runs. p_next has what happens to each task. Returns
-- true if other stores must be notified.
CREATE OR REPLACE FUNCTION {schema}.holdfast_change_tasks(
    p_now BIGINT, p_verdict INTEGER[], p_next INTEGER[], p_due BOOLEAN[], {commit.commits.parameters}
) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF {Next.FINISH} = ANY (p_next) THEN
        DELETE FROM {schema}.holdfast_task AS t USING unnest(p_c_run, p_next) AS a (run, next)
         WHERE t.run = a.run AND a.next = {Next.FINISH};
    END IF;
    IF {Next.PARK} = ANY (p_next) THEN
        PERFORM {schema}.holdfast_pause_units(a.run)
           FROM unnest(p_c_run, p_next) AS a (run, next) WHERE a.next = {Next.PARK};
    END IF;

    UPDATE {schema}.holdfast_run AS r
       SET started_at = coalesce(r.started_at, a.started_at), updated_at = p_now,
           status = CASE WHEN a.next IN ({Next.FINISH}, {Next.RELEASE}) THEN a.status
                         WHEN a.next = {Next.PARK} THEN {Status.PAUSED} ELSE r.status END,
           -- a requested pause has no note
           note = CASE WHEN a.next NOT IN ({Next.FINISH}, {Next.PARK}) THEN r.note
                       WHEN a.verdict = {VerdictNumber.APPLIED} THEN a.note END,
           output = CASE WHEN a.next = {Next.FINISH} THEN a.output ELSE r.output END,
           error = CASE WHEN a.next = {Next.FINISH} THEN a.error ELSE r.error END,
           completed_at = CASE WHEN a.next = {Next.FINISH} THEN p_now ELSE r.completed_at END
      FROM unnest(p_verdict, p_c_run, p_next, p_c_started_at, p_c_status, p_c_output, p_c_error, p_c_note)
           AS a (verdict, run, next, started_at, status, output, error, note)
     WHERE r.id = a.run AND a.verdict > {VerdictNumber.LOST}
       AND (a.next <> {Next.KEEP} OR (a.started_at IS NOT NULL AND r.started_at IS NULL));

    UPDATE {schema}.holdfast_task AS t
       SET owner = CASE WHEN a.next = {Next.KEEP} THEN t.owner END,
           lease_until = CASE WHEN a.next = {Next.KEEP} THEN t.lease_until END,
           run_at = CASE a.next WHEN {Next.KEEP} THEN t.run_at
                                WHEN {Next.RELEASE} THEN CASE WHEN a.due THEN p_now ELSE a.run_at END END,
           kind = CASE WHEN a.next <> {Next.RELEASE} THEN t.kind WHEN a.due THEN {TaskKind.WAKE} ELSE a.kind END,
           bucket = CASE WHEN a.next <> {Next.RELEASE} THEN t.bucket WHEN a.due THEN {Bucket.CONTINUING}
                         ELSE a.bucket END,
           topics = CASE WHEN a.next = {Next.RELEASE} THEN a.topics ELSE t.topics END,
           losses = CASE WHEN a.next <> {Next.KEEP} OR a.progress THEN 0 ELSE t.losses END,
           signal = CASE WHEN a.next <> {Next.KEEP} THEN {Signal.NONE}
                         WHEN a.verdict = {VerdictNumber.PAUSING} THEN t.signal ELSE t.signal & ~{Signal.EVENTS} END
      FROM unnest(p_verdict, p_c_run, p_c_unit, p_next, p_c_run_at, p_c_kind, p_c_bucket, p_c_topics, p_c_progress,
                  p_due)
           AS a (verdict, run, unit, next, run_at, kind, bucket, topics, progress, due)
     WHERE t.run = a.run AND t.unit = a.unit AND a.verdict > {VerdictNumber.LOST} AND a.next <> {Next.FINISH}
       AND (a.next <> {Next.KEEP} OR (a.progress AND t.losses <> 0)
            OR (a.verdict = {VerdictNumber.APPLIED} AND t.signal & {Signal.EVENTS} <> 0));

    RETURN EXISTS (SELECT FROM unnest(p_next, p_c_run_at, p_due) AS a (next, run_at, due)
                    WHERE a.next IN ({Next.FINISH}, {Next.PARK}) OR a.due
                       OR (a.next = {Next.RELEASE} AND a.run_at <= p_now));
END $$;

-- Propagate the ends of p_runs. Returns the affected runs as JSON, by the run that affected them.
CREATE OR REPLACE FUNCTION {schema}.holdfast_ends_as_json(p_now BIGINT, p_runs BIGINT[]) RETURNS TEXT
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN (SELECT jsonb_object_agg(by, jsonb_build_object('ended', ended, 'woken', woken, 'work', due))::text
              FROM (SELECT by, array_agg(ended) FILTER (WHERE ended IS NOT NULL) AS ended,
                           array_agg(DISTINCT woken) FILTER (WHERE woken IS NOT NULL) AS woken, bool_or(due) AS due
                      FROM {schema}.holdfast_propagate_ends(p_now, p_runs) GROUP BY by) AS e);
END $$;

-- Apply the most common commit: one fact and at most one delivery, after which the turn keeps the task, waits or ends
-- the run. Half the time of holdfast_commit, which unnests fifty arrays. p_next: a Next, but not PARK. Returns a
-- CommitOneResult; NOT_WRITTEN if the commit needs holdfast_commit (a signal, losses, units, or an end that affects
-- other runs). Writes no receipt: a retry recognises the fact by p_token. p_sequence and p_n are set in a retry: an earlier
-- attempt may have been applied here, or by holdfast_commit under that receipt.
CREATE OR REPLACE FUNCTION {schema}.holdfast_commit_one(
    {commit_one.common.parameters},
    -- rarely used: each argument costs time
    {commit_one.rare.parameters}
) RETURNS INTEGER LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_due BOOLEAN := false;
BEGIN
    IF p_sequence IS NOT NULL THEN
        -- The lock waits for an attempt that is still running. holdfast_commit leaves a receipt.
        PERFORM FROM {schema}.holdfast_task WHERE run = p_run AND unit = p_unit FOR NO KEY UPDATE;
        IF EXISTS (SELECT FROM {schema}.holdfast_fact
                    WHERE run = p_run AND state = p_state AND key = p_key AND n = p_fact_n
                      AND written_by = p_token) THEN
            RETURN CASE WHEN p_next = {Next.RELEASE} AND EXISTS (
                SELECT FROM {schema}.holdfast_task
                 WHERE run = p_run AND unit = p_unit AND owner IS NULL AND run_at <= v_now)
                THEN {CommitOneResult.APPLIED_AND_DUE} ELSE {CommitOneResult.APPLIED} END;
        ELSIF EXISTS (SELECT FROM {schema}.holdfast_receipt WHERE store = p_store AND sequence = p_sequence AND n >= p_n) THEN
            RETURN {CommitOneResult.NOT_WRITTEN};
        END IF;
    END IF;
    -- The condition of each statement is the fence.
    IF p_next = {Next.KEEP} THEN
        PERFORM FROM {schema}.holdfast_task
          WHERE run = p_run AND unit = p_unit AND (owner = p_owner) IS TRUE AND epoch = p_epoch AND signal = 0
            AND losses = 0
            FOR NO KEY UPDATE;
    ELSIF p_next = {Next.FINISH} THEN
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
        RETURN {CommitOneResult.NOT_WRITTEN};
    END IF;
    IF p_next = {Next.RELEASE} THEN  -- checked under the task's lock, so no event can arrive in between
        v_due := EXISTS (SELECT FROM {schema}.holdfast_event
                          WHERE run = p_run AND n > p_seen AND delivered_at IS NULL AND n IS DISTINCT FROM p_d_event
                            AND {schema}.holdfast_matches_topics(type, p_topics));
    END IF;
    INSERT INTO {schema}.holdfast_fact (run, {fact.columns}, written_by)
    VALUES (p_run, p_state, p_key, p_fact_n, p_kind, p_at, p_started_at, p_seq, p_ok, p_value, p_name, p_attempts,
            p_max_attempts, p_timeout_ms, p_wake_at, p_event_type, p_event, p_token);
    IF p_d_event IS NOT NULL THEN
        UPDATE {schema}.holdfast_event SET delivered_at = p_d_at, consumed_by = p_d_key
         WHERE run = p_run AND n = p_d_event AND delivered_at IS NULL;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'an event cannot be consumed: it does not exist or was consumed before'
                USING ERRCODE = {NOT_CONSUMABLE};
        END IF;
    END IF;
    IF p_next = {Next.FINISH} THEN
        UPDATE {schema}.holdfast_run
           SET started_at = coalesce(started_at, p_run_started_at), updated_at = v_now, status = p_status,
               note = p_note, output = p_output, error = p_error, completed_at = v_now
         WHERE id = p_run;
    ELSIF p_next = {Next.RELEASE} THEN
        UPDATE {schema}.holdfast_run
           SET started_at = coalesce(started_at, p_run_started_at), updated_at = v_now, status = p_status
         WHERE id = p_run;
    ELSIF p_run_started_at IS NOT NULL THEN
        UPDATE {schema}.holdfast_run SET started_at = p_run_started_at, updated_at = v_now
         WHERE id = p_run AND started_at IS NULL;
    END IF;
    IF v_due THEN
        UPDATE {schema}.holdfast_task SET run_at = v_now, kind = {TaskKind.WAKE}, bucket = {Bucket.CONTINUING}
         WHERE run = p_run AND unit = p_unit;
    END IF;
    IF p_next = {Next.FINISH} OR v_due OR (p_next = {Next.RELEASE} AND p_run_at <= v_now) THEN
        PERFORM pg_notify('{channel}', p_store);
    END IF;
    RETURN CASE WHEN v_due THEN {CommitOneResult.APPLIED_AND_DUE} ELSE {CommitOneResult.APPLIED} END;
END $$;

-- Write an event together with the turn that it causes in a waiting run (Prediction): the result of the wait, and the
-- end of the run, a release or the claim of the worker that continues. Returns false, and writes nothing, if the run is
-- not in the state that p_epoch and p_n predict, or if p_at differs from now by more than MAX_CLOCK_SKEW_MS; raises
-- PREDICTION_FAILED or 23505 if that is found after the first write. One transaction instead of two, and half the rows.
-- A retry recognises the fact by p_token, as with holdfast_commit_one; so p_dedup is set only if the sender gave a key.
-- p_next: a Next, but not PARK.
CREATE OR REPLACE FUNCTION {schema}.holdfast_send_predicted(
    {send_predicted.common.parameters},
    -- rarely used
    {send_predicted.rare.parameters}
) RETURNS BOOLEAN LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_line BIGINT;
BEGIN
    IF abs(v_now - p_at) > {MAX_CLOCK_SKEW_MS} OR (p_dedup IS NOT NULL AND EXISTS (
        SELECT FROM {schema}.holdfast_event
         WHERE line = (SELECT coalesce(line, id) FROM {schema}.holdfast_run WHERE id = p_run) AND dedup = p_dedup)) THEN
        RETURN false;
    END IF;
    IF p_next = {Next.FINISH} THEN
        DELETE FROM {schema}.holdfast_task
         WHERE run = p_run AND unit = 0 AND owner IS NULL AND epoch = p_epoch - 1 AND signal = 0 AND losses = 0
           AND (run_at > v_now OR run_at IS NULL) AND (pin = '' OR pin = p_version) AND NOT bound AND missing IS NULL;
    ELSIF p_next = {Next.RELEASE} THEN
        UPDATE {schema}.holdfast_task
           SET epoch = p_epoch, topics = p_topics, run_at = p_run_at, kind = p_task_kind, bucket = p_bucket
         WHERE run = p_run AND unit = 0 AND owner IS NULL AND epoch = p_epoch - 1 AND signal = 0 AND losses = 0
           AND (run_at > v_now OR run_at IS NULL) AND (pin = '' OR pin = p_version);
    ELSE
        UPDATE {schema}.holdfast_task
           SET epoch = p_epoch, owner = p_owner, lease_until = v_now + p_lease_ms, lease_ms = NULL,
               claimed_by = p_token, run_at = v_now, kind = {TaskKind.WAKE}, bucket = {Bucket.CONTINUING}
         WHERE run = p_run AND unit = 0 AND owner IS NULL AND epoch = p_epoch - 1 AND signal = 0 AND losses = 0
           AND (run_at > v_now OR run_at IS NULL) AND (pin = '' OR pin = p_version);
    END IF;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF p_next = {Next.FINISH} THEN
        UPDATE {schema}.holdfast_run
           SET updated_at = v_now, status = p_status, note = p_note, output = p_output, error = p_error,
               completed_at = v_now
         WHERE id = p_run AND status = {Status.WAITING} RETURNING coalesce(line, id) INTO v_line;
    ELSE
        UPDATE {schema}.holdfast_run SET updated_at = v_now, status = coalesce(p_status, {Status.ACTIVE})
         WHERE id = p_run AND status = {Status.WAITING} RETURNING coalesce(line, id) INTO v_line;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the prediction does not hold' USING ERRCODE = {PREDICTION_FAILED};
    END IF;
    -- Under the task's lock, the number is free only if no other event has arrived.
    INSERT INTO {schema}.holdfast_event (run, n, type, payload, created_at, sender, delivered_at, consumed_by, dedup,
                                         sent_by, line, trace)
    VALUES (p_run, p_n, p_type, p_payload, p_at, p_sender, p_at, p_key, p_dedup, p_token,
            CASE WHEN p_dedup IS NOT NULL THEN v_line END, p_trace);
    INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, attempts, wake_at,
                                        event_type, event, written_by)
    VALUES (p_run, {FactState.RESULT}, p_key, 0, p_kind, p_at, p_started_at, p_seq, true, 0, p_wake_at, p_type, p_n,
            p_token);
    IF p_next = {Next.FINISH} OR (p_next = {Next.RELEASE} AND p_run_at <= v_now) THEN
        PERFORM pg_notify('{channel}', p_store);
    END IF;
    RETURN true;
END $$;

-- True if an earlier attempt of the call wrote the prediction. Waits for an attempt that is still running.
CREATE OR REPLACE FUNCTION {schema}.holdfast_prediction_written(p_run BIGINT, p_key BYTEA, p_token BIGINT)
RETURNS BOOLEAN LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
    PERFORM FROM {schema}.holdfast_task WHERE run = p_run AND unit = 0 FOR NO KEY UPDATE;
    RETURN EXISTS (SELECT FROM {schema}.holdfast_fact
                    WHERE run = p_run AND state = {FactState.RESULT} AND key = p_key AND n = 0
                      AND written_by = p_token);
END $$;

-- How runs end, and what follows from it for others.

-- The tombstone of a graph that is terminated or cancelled; other runs have none.
CREATE FUNCTION {schema}.holdfast_bury(p_now BIGINT, p_run BIGINT, p_reason BYTEA) RETURNS void LANGUAGE sql AS $$
    INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, ok, value, attempts)
    SELECT id, 6, 'tombstone', 0, 'tombstone', p_now, p_now, true, {schema}.holdfast_json(p_reason), 0
      FROM {schema}.holdfast_run WHERE id = p_run AND kind = 'graph'
$$;

-- Why a run is ended together with its parent.
CREATE FUNCTION {schema}.holdfast_orphaned(p_parent TEXT) RETURNS BYTEA LANGUAGE sql STABLE AS $$
    SELECT 'its parent '::bytea || convert_to(p_parent, 'UTF8') || ' has ended'::bytea
$$;

-- The error of a graph that is cancelled.
CREATE FUNCTION {schema}.holdfast_cancelled(p_reason BYTEA) RETURNS BYTEA LANGUAGE sql IMMUTABLE AS $$
    SELECT '{"name":"CancelledError","message":'::bytea
        || {schema}.holdfast_json(coalesce(nullif(p_reason, ''::bytea), 'no reason given'::bytea))
        || ',"kind":"Cancelled","retryable":false}'::bytea
$$;

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
         WHERE c.parent_close = 'request_cancel' AND c.kind <> 'graph';
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
         WHERE c.parent_close = 'terminate' OR (c.parent_close = 'request_cancel' AND c.kind = 'graph');
        PERFORM {schema}.holdfast_bury(p_now, c.id, {schema}.holdfast_orphaned(c.parent))
           FROM {schema}.holdfast_run AS c WHERE c.id = ANY (v_ended) AND c.kind = 'graph';
        DELETE FROM {schema}.holdfast_task WHERE run = ANY (v_ended);
        UPDATE {schema}.holdfast_run AS c
           SET status = 'terminated', updated_at = p_now, completed_at = p_now,
               note = {schema}.holdfast_orphaned(c.parent)
         WHERE c.id = ANY (v_ended) AND c.parent_close = 'terminate';
        UPDATE {schema}.holdfast_run AS c
           SET status = 'cancelled', updated_at = p_now, completed_at = p_now,
               error = {schema}.holdfast_cancelled({schema}.holdfast_orphaned(c.parent))
         WHERE c.id = ANY (v_ended) AND c.parent_close = 'request_cancel';
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
    WITH gone AS (DELETE FROM {schema}.holdfast_task WHERE run = p_run RETURNING bound)
    SELECT bool_or(bound) INTO v_bound FROM gone;
    IF p_status = 'terminated' THEN
        PERFORM {schema}.holdfast_bury(p_now, p_run, p_note);
    END IF;
    UPDATE {schema}.holdfast_run
       SET status = p_status, output = p_output, error = p_error, note = p_note, updated_at = p_now,
           completed_at = p_now
     WHERE id = p_run;
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

-- Makes the run that comes after the current one of an instance, and is like it. Nobody holds it. p_in_line: the one
-- before has asked for it, so that it knows the ids of what was sent to that.
CREATE FUNCTION {schema}.holdfast_make_next(
    p_now BIGINT, p_by TEXT, p_old BIGINT, p_token BIGINT, p_params BYTEA, p_run_at BIGINT, p_attempt BIGINT,
    p_expires_at BIGINT, p_expiry TEXT, p_options BYTEA, p_unit BIGINT[], p_unit_key BYTEA[], p_unit_missing BIGINT[],
    p_in_line BOOLEAN
) RETURNS BIGINT LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_new BIGINT := nextval('{schema}.holdfast_run_id');
    v_units BIGINT := nullif(cardinality(p_unit), 0);
BEGIN
    UPDATE {schema}.holdfast_run SET current = false WHERE id = p_old;
    INSERT INTO {schema}.holdfast_run (id, instance, workflow, instance_id, number, current, kind, status, params,
                                       queue, priority, seed, created_at, updated_at, made_by, parent, parent_run,
                                       parent_close, attempt, options, memo, search, line)
    SELECT v_new, o.instance, o.workflow, o.instance_id, o.number + 1, true, o.kind,
           CASE WHEN p_run_at > p_now THEN 'waiting' ELSE 'active' END, p_params, o.queue, o.priority, o.seed,
           o.created_at, p_now, p_token, o.parent, o.parent_run, o.parent_close, p_attempt,
           coalesce(p_options, o.options), o.memo, o.search, CASE WHEN p_in_line THEN coalesce(o.line, o.id) END
      FROM {schema}.holdfast_run AS o WHERE o.id = p_old;
    INSERT INTO {schema}.holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, epoch, losses, lost,
                                        signal, topics, expires_at, expiry, missing)
    SELECT v_new, 0, o.workflow, o.queue, 1, 3, o.priority, CASE WHEN v_units IS NULL THEN p_run_at END, 0, 0, false, 0,
           '', p_expires_at, p_expiry, v_units
      FROM {schema}.holdfast_run AS o WHERE o.id = p_old;
    IF v_units > 0 THEN
        INSERT INTO {schema}.holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, epoch, losses,
                                            lost, signal, topics, missing, key)
        SELECT v_new, u.unit, o.workflow, o.queue, 1, 3, o.priority, CASE WHEN u.missing = 0 THEN p_run_at END, 0, 0,
               false, 0, '', u.missing, u.key
          FROM {schema}.holdfast_run AS o
         CROSS JOIN unnest(p_unit, p_unit_key, p_unit_missing) AS u (unit, key, missing)
         WHERE o.id = p_old;
    END IF;
    INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, value, name, attempts,
                                        max_attempts, timeout_ms, wake_at, event_type, event)
    SELECT v_new, f.state, f.key, f.n, f.kind, f.at, f.started_at, f.seq, f.ok, f.value, f.name, f.attempts,
           f.max_attempts, f.timeout_ms, f.wake_at, f.event_type, f.event
      FROM {schema}.holdfast_fact AS f WHERE f.run = p_old AND f.state = 3;
    PERFORM pg_notify('{channel}', p_by);
    RETURN v_new;
END $$;

-- A turn has ended its run, and another comes after it (NextRun). What was not consumed of the mail is moved.
CREATE FUNCTION {schema}.holdfast_succeed(
    p_now BIGINT, p_by TEXT, p_run BIGINT, p_status TEXT, p_output BYTEA, p_error BYTEA, p_note BYTEA, p_token BIGINT,
    p_params BYTEA, p_run_at BIGINT, p_attempt BIGINT, p_expires_ms BIGINT, p_expiry TEXT, p_continues BOOLEAN,
    p_options BYTEA, p_unit BIGINT[], p_unit_key BYTEA[], p_unit_missing BIGINT[]
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
        p_now, p_by, p_run, p_token, p_params, v_run_at, p_attempt, v_expires_at, v_expiry, p_options, p_unit,
        p_unit_key, p_unit_missing, true);
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
    IF v_called AND (v_run_at > p_now OR cardinality(p_unit) > 0) THEN  -- the engine's mail does not let a run wait
        v_run_at := p_now;
        UPDATE {schema}.holdfast_task SET run_at = p_now WHERE run = v_new AND unit = 0;
    END IF;
    v_touched := {schema}.holdfast_end(p_now, p_by, p_run, p_status, p_output, p_error, p_note, v_new, p_continues);
    v_touched.work := coalesce(v_touched.work, false) OR v_run_at <= p_now;
    RETURN v_touched;
END $$;

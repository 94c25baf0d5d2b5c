-- Ending runs, and the effects on other runs.

-- Write the tombstone of a graph that is terminated or cancelled; does nothing for other kinds of runs.
CREATE OR REPLACE FUNCTION {schema}.holdfast_write_tombstone(p_now BIGINT, p_run BIGINT, p_reason BYTEA) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, ok, value, attempts)
    SELECT id, {FactState.TOMBSTONE}, 'tombstone', 0, 'tombstone', p_now, p_now, true,
           {schema}.holdfast_json_string(p_reason), 0
      FROM {schema}.holdfast_run WHERE id = p_run AND kind = {GRAPH}
$$;

-- The reason recorded for a run that is ended because its parent has ended.
CREATE OR REPLACE FUNCTION {schema}.holdfast_parent_ended_reason(p_parent TEXT) RETURNS BYTEA LANGUAGE sql STABLE AS $$
    SELECT 'its parent '::bytea || convert_to(p_parent, 'UTF8') || ' has ended'::bytea
$$;

-- The error of a cancelled graph.
CREATE OR REPLACE FUNCTION {schema}.holdfast_cancelled_error(p_reason BYTEA) RETURNS BYTEA LANGUAGE sql IMMUTABLE AS $$
    SELECT '{"name":"CancelledError","message":'::bytea
        || {schema}.holdfast_json_string(coalesce(nullif(p_reason, ''::bytea), 'no reason given'::bytea))
        || ',"kind":"Cancelled","retryable":false}'::bytea
$$;

-- Apply the effects of the end of p_runs, whose rows are terminal and whose tasks are deleted: watchers get an exit
-- event, and unfinished children are treated by their parent_close policy; children that this ends are treated the same
-- way, recursively. Returns the other runs that ended or were woken; by names the run of p_runs that caused it.
CREATE OR REPLACE FUNCTION {schema}.holdfast_propagate_ends(p_now BIGINT, p_runs BIGINT[])
RETURNS TABLE (by BIGINT, ended BIGINT, woken BIGINT, due BOOLEAN) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_ended BIGINT[] := p_runs;
    v_by BIGINT[] := p_runs;
    v_receiver BIGINT[];
    v_receiver_by BIGINT[];
    v_payload BYTEA[];
    v_sender BYTEA[];
BEGIN
    PERFORM {schema}.holdfast_lock_affected(p_runs, NULL);
    WHILE v_ended IS NOT NULL LOOP
        -- Delete their own watches first: an ended run must not receive the exits of its children.
        DELETE FROM {schema}.holdfast_watch WHERE watcher = ANY (v_ended);
        WITH watches AS (
            DELETE FROM {schema}.holdfast_watch WHERE target = ANY (v_ended) RETURNING target, watcher, kind
        )
        SELECT array_agg(w.watcher ORDER BY a.ord, w.watcher), array_agg(a.by ORDER BY a.ord, w.watcher),
               array_agg(x.payload ORDER BY a.ord, w.watcher), array_agg(x.pid ORDER BY a.ord, w.watcher)
          INTO v_receiver, v_receiver_by, v_payload, v_sender
          FROM watches AS w
          JOIN unnest(v_ended, v_by) WITH ORDINALITY AS a (run, by, ord) ON a.run = w.target
         CROSS JOIN LATERAL (SELECT {schema}.holdfast_exit_payload(w.kind, r) AS payload,
                                    {schema}.holdfast_pid(r.workflow, r.instance_id) AS pid
                               FROM {schema}.holdfast_run AS r WHERE r.id = w.target OFFSET 0) AS x;
        IF v_receiver IS NOT NULL THEN
            RETURN QUERY
                SELECT DISTINCT a.by, NULL::bigint, p.run, p.due
                  FROM {schema}.holdfast_send_engine_events(p_now, v_receiver, {EXIT}, v_payload, v_sender) AS p
                  JOIN unnest(v_receiver, v_receiver_by) AS a (run, by) ON a.run = p.run;
        END IF;

        SELECT array_agg(c.id ORDER BY c.id), array_agg(a.by ORDER BY c.id),
               array_agg((SELECT {schema}.holdfast_pid(p.workflow, p.instance_id)
                            FROM {schema}.holdfast_run AS p WHERE p.id = a.run) ORDER BY c.id)
          INTO v_receiver, v_receiver_by, v_sender
          FROM unnest(v_ended, v_by) AS a (run, by) CROSS JOIN LATERAL {schema}.holdfast_unfinished_children(a.run) AS c
         WHERE c.parent_close = {ParentClose.REQUEST_CANCEL} AND c.kind <> {GRAPH};
        IF v_receiver IS NOT NULL THEN
            v_payload := ARRAY(SELECT '{"reason":'::bytea || {schema}.holdfast_json_string(
                                   'its parent '::bytea || s || ' has ended'::bytea) || ',"deadlineMs":null}'::bytea
                                 FROM unnest(v_sender) WITH ORDINALITY AS a (s, o) ORDER BY o);
            RETURN QUERY
                SELECT a.by, NULL::bigint, p.run, p.due
                  FROM {schema}.holdfast_send_engine_events(p_now, v_receiver, {CANCEL}, v_payload, v_sender) AS p
                  JOIN unnest(v_receiver, v_receiver_by) AS a (run, by) ON a.run = p.run;
        END IF;

        SELECT array_agg(c.id ORDER BY c.id), array_agg(a.by ORDER BY c.id) INTO v_ended, v_by
          FROM unnest(v_ended, v_by) AS a (run, by) CROSS JOIN LATERAL {schema}.holdfast_unfinished_children(a.run) AS c
         WHERE c.parent_close = {ParentClose.TERMINATE}
            OR (c.parent_close = {ParentClose.REQUEST_CANCEL} AND c.kind = {GRAPH});
        PERFORM {schema}.holdfast_write_tombstone(p_now, c.id, {schema}.holdfast_parent_ended_reason(c.parent))
           FROM {schema}.holdfast_run AS c WHERE c.id = ANY (v_ended) AND c.kind = {GRAPH};
        DELETE FROM {schema}.holdfast_task WHERE run = ANY (v_ended);
        UPDATE {schema}.holdfast_run AS c
           SET status = {Status.TERMINATED}, updated_at = p_now, completed_at = p_now,
               note = {schema}.holdfast_parent_ended_reason(c.parent)
         WHERE c.id = ANY (v_ended) AND c.parent_close = {ParentClose.TERMINATE};
        UPDATE {schema}.holdfast_run AS c
           SET status = {Status.CANCELLED}, updated_at = p_now, completed_at = p_now,
               error = {schema}.holdfast_cancelled_error({schema}.holdfast_parent_ended_reason(c.parent))
         WHERE c.id = ANY (v_ended) AND c.parent_close = {ParentClose.REQUEST_CANCEL};
        RETURN QUERY SELECT a.by, a.run, NULL::bigint, false FROM unnest(v_ended, v_by) AS a (run, by);
    END LOOP;
END $$;

-- End an unfinished run whose task is locked. p_successor: NULL, or the next run of the instance, which inherits the
-- watchers of this one; with p_continues also its unfinished children and its own watches.
CREATE OR REPLACE FUNCTION {schema}.holdfast_end_run(
    p_now BIGINT, p_store TEXT, p_run BIGINT, p_status TEXT, p_output BYTEA, p_error BYTEA, p_note BYTEA,
    p_successor BIGINT, p_continues BOOLEAN
) RETURNS {schema}.holdfast_affected LANGUAGE plpgsql AS $$
DECLARE
    v_bound BOOLEAN;
BEGIN
    WITH gone AS (DELETE FROM {schema}.holdfast_task WHERE run = p_run RETURNING bound)
    SELECT bool_or(bound) INTO v_bound FROM gone;
    IF p_status = {Status.TERMINATED} THEN
        PERFORM {schema}.holdfast_write_tombstone(p_now, p_run, p_note);
    END IF;
    UPDATE {schema}.holdfast_run
       SET status = p_status, output = p_output, error = p_error, note = p_note, updated_at = p_now,
           completed_at = p_now
     WHERE id = p_run;
    PERFORM pg_notify('{channel}', p_store);
    IF NOT v_bound THEN
        RETURN NULL;
    END IF;
    IF p_successor IS NOT NULL THEN
        -- A run that started the successor may watch it already.
        WITH moving AS (DELETE FROM {schema}.holdfast_watch WHERE target = p_run RETURNING watcher, kind)
        INSERT INTO {schema}.holdfast_watch AS w (target, watcher, kind)
        SELECT p_successor, m.watcher, m.kind FROM moving AS m
        ON CONFLICT (target, watcher) DO UPDATE SET kind = w.kind | excluded.kind;
        UPDATE {schema}.holdfast_task SET bound = true WHERE run = p_successor AND unit = 0;
    END IF;
    IF p_continues THEN
        UPDATE {schema}.holdfast_watch SET watcher = p_successor WHERE watcher = p_run;
        UPDATE {schema}.holdfast_run SET parent_run = p_successor
         WHERE parent_run = p_run AND parent_run IS NOT NULL AND completed_at IS NULL;
        RETURN NULL;
    END IF;
    RETURN (SELECT ROW(array_agg(e.ended) FILTER (WHERE e.ended IS NOT NULL),
                       array_agg(DISTINCT e.woken) FILTER (WHERE e.woken IS NOT NULL),
                       bool_or(e.due))::{schema}.holdfast_affected
              FROM {schema}.holdfast_propagate_ends(p_now, ARRAY[p_run]) AS e);
END $$;

-- Insert the successor of the current run of an instance, with the attributes of that run and no owner. p_in_line: the
-- successor continues the line of the old run, so dedup keys of events sent to the old run stay known. p_fork_id: the
-- new run is not a successor, but the first run of another instance with this id.
CREATE OR REPLACE FUNCTION {schema}.holdfast_insert_successor(
    p_now BIGINT, p_store TEXT, p_old BIGINT, p_token BIGINT, p_params BYTEA, p_run_at BIGINT, p_attempt BIGINT,
    p_expires_at BIGINT, p_expiry TEXT, p_options BYTEA, p_unit BIGINT[], p_unit_key BYTEA[], p_unit_missing BIGINT[],
    p_in_line BOOLEAN, p_fork_id TEXT = NULL
) RETURNS BIGINT LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_new BIGINT := nextval('{schema}.holdfast_run_id');
    v_units BIGINT := nullif(cardinality(p_unit), 0);
BEGIN
    UPDATE {schema}.holdfast_run SET current = false WHERE id = p_old AND p_fork_id IS NULL;
    INSERT INTO {schema}.holdfast_run (id, instance, workflow, instance_id, number, current, kind, status, params,
                                       queue, priority, seed, created_at, updated_at, made_by, parent, parent_run,
                                       parent_close, attempt, options, memo, search, line)
    SELECT v_new, CASE WHEN p_fork_id IS NULL THEN o.instance ELSE v_new END, o.workflow,
           coalesce(p_fork_id, o.instance_id), CASE WHEN p_fork_id IS NULL THEN o.number + 1 ELSE 0 END, true, o.kind,
           CASE WHEN p_run_at > p_now THEN {Status.WAITING} ELSE {Status.ACTIVE} END, p_params, o.queue, o.priority,
           o.seed, CASE WHEN p_fork_id IS NULL THEN o.created_at ELSE p_now END, p_now, p_token,
           CASE WHEN p_fork_id IS NULL THEN o.parent END, CASE WHEN p_fork_id IS NULL THEN o.parent_run END,
           CASE WHEN p_fork_id IS NULL THEN o.parent_close END, p_attempt, coalesce(p_options, o.options), o.memo,
           o.search, CASE WHEN p_in_line AND p_fork_id IS NULL THEN coalesce(o.line, o.id) END
      FROM {schema}.holdfast_run AS o WHERE o.id = p_old;
    INSERT INTO {schema}.holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, epoch, losses, lost,
                                        signal, topics, expires_at, expiry, missing)
    SELECT v_new, 0, o.workflow, o.queue, {Bucket.STARTING}, {TaskKind.RUN}, o.priority,
           CASE WHEN v_units IS NULL THEN p_run_at END, 0, 0, false, {Signal.NONE}, '', p_expires_at, p_expiry, v_units
      FROM {schema}.holdfast_run AS o WHERE o.id = p_old;
    IF v_units > 0 THEN
        INSERT INTO {schema}.holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, epoch, losses,
                                            lost, signal, topics, missing, key)
        SELECT v_new, u.unit, o.workflow, o.queue, {Bucket.STARTING}, {TaskKind.RUN}, o.priority,
               CASE WHEN u.missing = 0 THEN p_run_at END, 0, 0, false, {Signal.NONE}, '', u.missing, u.key
          FROM {schema}.holdfast_run AS o
         CROSS JOIN unnest(p_unit, p_unit_key, p_unit_missing) AS u (unit, key, missing)
         WHERE o.id = p_old;
    END IF;
    INSERT INTO {schema}.holdfast_fact (run, {fact.columns})
    SELECT v_new, {fact.columns f}
      FROM {schema}.holdfast_fact AS f WHERE f.run = p_old AND f.state = {FactState.PLAN};
    IF position('"single":'::bytea IN (SELECT options FROM {schema}.holdfast_run WHERE id = v_new)) > 0 THEN
        PERFORM {schema}.holdfast_inherit_group(v_new, CASE WHEN p_fork_id IS NULL THEN p_old END, p_run_at);
    END IF;
    PERFORM pg_notify('{channel}', p_store);
    RETURN v_new;
END $$;

-- End a run at the request of its turn, with a successor (NextRun). Undelivered events move to the successor.
CREATE OR REPLACE FUNCTION {schema}.holdfast_end_with_successor(
    p_now BIGINT, p_store TEXT, p_run BIGINT, p_status TEXT, p_output BYTEA, p_error BYTEA, p_note BYTEA,
    p_token BIGINT, p_params BYTEA, p_run_at BIGINT, p_attempt BIGINT, p_expires_ms BIGINT, p_expiry TEXT,
    p_continues BOOLEAN, p_options BYTEA, p_unit BIGINT[], p_unit_key BYTEA[], p_unit_missing BIGINT[]
) RETURNS {schema}.holdfast_affected LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_run_at BIGINT := coalesce(p_run_at, p_now);
    v_expires_at BIGINT := v_run_at + p_expires_ms;
    v_expiry TEXT := p_expiry;
    v_cancel_at BIGINT;
    v_new BIGINT;
    v_moving BIGINT[];
    v_engine_events BOOLEAN;
    v_affected {schema}.holdfast_affected;
BEGIN
    SELECT expires_at INTO v_cancel_at FROM {schema}.holdfast_task
     WHERE run = p_run AND unit = 0 AND expiry = {Expiry.CANCEL};
    IF v_cancel_at <= coalesce(v_expires_at, v_cancel_at) THEN
        v_expires_at := v_cancel_at;
        v_expiry := {Expiry.CANCEL};
    END IF;
    v_new := {schema}.holdfast_insert_successor(
        p_now, p_store, p_run, p_token, p_params, v_run_at, p_attempt, v_expires_at, v_expiry, p_options, p_unit,
        p_unit_key, p_unit_missing, true);
    v_moving := ARRAY(SELECT n FROM {schema}.holdfast_event
                       WHERE run = p_run AND delivered_at IS NULL
                         AND (p_continues OR type = {CANCEL} OR type NOT LIKE '@%') ORDER BY n);
    IF cardinality(v_moving) > 0 THEN
        WITH moved AS (
            UPDATE {schema}.holdfast_event AS e SET run = v_new, n = m.place
              FROM unnest(v_moving) WITH ORDINALITY AS m (n, place)
             WHERE e.run = p_run AND e.n = m.n
            RETURNING e.type
        )
        SELECT bool_or(type LIKE '@%') INTO v_engine_events FROM moved;
    END IF;
    -- An engine event makes a run due at once.
    IF v_engine_events AND (v_run_at > p_now OR cardinality(p_unit) > 0) THEN
        v_run_at := p_now;
        UPDATE {schema}.holdfast_task SET run_at = p_now WHERE run = v_new AND unit = 0;
    END IF;
    v_affected := {schema}.holdfast_end_run(p_now, p_store, p_run, p_status, p_output, p_error, p_note, v_new,
                                            p_continues);
    v_affected.work := coalesce(v_affected.work, false) OR v_run_at <= p_now;
    RETURN v_affected;
END $$;

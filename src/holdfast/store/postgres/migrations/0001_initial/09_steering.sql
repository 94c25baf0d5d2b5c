-- What people do to runs.

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
            UPDATE {schema}.holdfast_task SET signal = signal | 2 WHERE run = v_run AND unit = 0;
        END IF;
        PERFORM pg_notify('{channel}', p_by);
    END IF;
    RETURN NEXT v_rec;
END $$;

-- The run is paused; its task stays, for the sake of its epoch, held by nobody and never due. Units that somebody holds
-- go on to their end, and the others are not due either.
CREATE FUNCTION {schema}.holdfast_set_paused(p_now BIGINT, p_run BIGINT, p_note BYTEA) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.holdfast_task SET owner = NULL, lease_until = NULL, run_at = NULL, signal = 0
     WHERE run = p_run AND unit = 0;
    PERFORM {schema}.holdfast_hold_units(p_run);
    UPDATE {schema}.holdfast_run SET status = 'paused', note = p_note, updated_at = p_now WHERE id = p_run;
END $$;

-- Before the run's own row is changed: a claim of one of them may be about to do that.
CREATE FUNCTION {schema}.holdfast_hold_units(p_run BIGINT) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.holdfast_task SET run_at = NULL
     WHERE run = p_run AND unit > 0 AND owner IS NULL AND run_at IS NOT NULL;
END $$;

-- A task that was given back while its run is paused: one that was held only to be ended, and was not, or a unit.
CREATE FUNCTION {schema}.holdfast_still_paused(p_run BIGINT, p_unit BIGINT) RETURNS void LANGUAGE sql AS $$
    UPDATE {schema}.holdfast_task SET run_at = NULL
     WHERE run = p_run AND unit = p_unit
       AND EXISTS (SELECT FROM {schema}.holdfast_run WHERE id = p_run AND status = 'paused')
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
        UPDATE {schema}.holdfast_task SET run_at = v_now, kind = 2, bucket = 0, losses = lost::int
         WHERE run = v_run AND (unit = 0 OR (owner IS NULL AND missing = 0));
        UPDATE {schema}.holdfast_run SET status = 'active', note = NULL, updated_at = v_now WHERE id = v_run;
        PERFORM pg_notify('{channel}', p_by);
    ELSIF v_rec.signal & 2 <> 0 THEN
        UPDATE {schema}.holdfast_task SET signal = signal & ~2 WHERE run = v_run AND unit = 0;
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
    p_now BIGINT, p_by TEXT, p_workflow TEXT, p_instance_id TEXT, p_payload BYTEA, p_reason BYTEA, p_deadline_ms BIGINT
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
        v_touched := {schema}.holdfast_ask_to_cancel(v_now, p_by, v_run, p_payload, p_reason, p_deadline_ms, NULL);
        PERFORM pg_notify('{channel}', p_by);
    END IF;
    RETURN QUERY SELECT v_touched.ended, v_touched.woken, v_touched.work, v_rec;
END $$;

-- A restart whose answer got lost and is asked for again has made its run: p_token tells.
CREATE FUNCTION {schema}.holdfast_restart(
    p_now BIGINT, p_by TEXT, p_workflow TEXT, p_instance_id TEXT, p_reason BYTEA, p_expires_ms BIGINT, p_expiry TEXT,
    p_options BYTEA, p_token BIGINT, p_unit BIGINT[], p_unit_key BYTEA[], p_unit_missing BIGINT[]
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
            v_now, p_by, v_old.id, p_token, v_old.params, v_now, 1, v_now + p_expires_ms, p_expiry, p_options, p_unit,
            p_unit_key, p_unit_missing, false);
        IF v_old.completed_at IS NULL THEN
            v_touched := {schema}.holdfast_end(
                v_now, p_by, v_old.id, 'terminated', NULL, NULL, p_reason, v_run, false);
            v_touched.ended := v_old.id || v_touched.ended;
        END IF;
    END IF;
    RETURN QUERY
        SELECT v_touched.ended, v_touched.woken, true, rec FROM {schema}.holdfast_record AS rec WHERE rec.run = v_run;
END $$;

-- The exchange of permits between a worker and the database (functions/permits.sql has its parts).

-- One exchange of a worker: returns, parks, grants, requests. p_all: return all permits that the worker holds, because
-- the reply to an earlier attempt of this call was lost. The arrays of limits hold JSON lists of [name, key].
CREATE OR REPLACE FUNCTION {schema}.holdfast_exchange_permits(
    p_now BIGINT, p_store TEXT, p_all BOOLEAN, p_owner TEXT, {exchange.parameters}
) RETURNS TABLE (results INTEGER[], granted_run BIGINT[], granted_unit BIGINT[], granted_step BYTEA[],
                 granted_attempt BIGINT[], granted_epoch BIGINT[], due BOOLEAN, next_at BIGINT) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_request RECORD;
    v_added RECORD;
    v_joined BIGINT[] := '{}';
    v_task RECORD;
    v_paused BOOLEAN;
    v_woken INTEGER;
BEGIN
    IF cardinality(p_q_run) = 0 AND cardinality(p_x_run) = 0 AND cardinality(p_k_run) = 0 AND NOT p_all
       AND NOT EXISTS (SELECT FROM {schema}.holdfast_limit_use WHERE freed)
       AND NOT EXISTS (SELECT FROM {schema}.holdfast_limit_use WHERE ready_at IS NOT NULL AND ready_at <= v_now)
       AND NOT EXISTS (SELECT FROM {schema}.holdfast_permit
                        WHERE state = {PermitState.GRANTED} AND (owner = p_owner OR (owner IS NULL AND NOT woken))) THEN
        SELECT false, min(ready_at) INTO due, next_at FROM {schema}.holdfast_limit_use WHERE ready_at IS NOT NULL;
        RETURN NEXT;
        RETURN;
    END IF;
    PERFORM FROM {schema}.holdfast_task AS t
      WHERE (t.run, t.unit) IN (SELECT q.run, q.unit FROM unnest(p_q_run, p_q_unit) AS q (run, unit))
      ORDER BY t.run, t.unit FOR NO KEY UPDATE;
    PERFORM {schema}.holdfast_lock_permits();
    DELETE FROM {schema}.holdfast_permit AS p USING {exchange.returns.rows}
     WHERE p.run = x.run AND p.unit = x.unit AND p.step = x.step AND p.attempt = x.attempt AND p.owner = x.owner
       AND p.epoch = x.epoch;
    UPDATE {schema}.holdfast_permit AS p SET parked = p.epoch FROM {exchange.parked.rows}
     WHERE p.run = k.run AND p.unit = k.unit AND p.owner = k.owner AND p.epoch = k.epoch
       AND p.state < {PermitState.HELD};
    PERFORM {schema}.holdfast_settle_permits(v_now);
    results := '{}';
    FOR v_request IN
        SELECT q.*, ARRAY(SELECT l ->> 0 FROM jsonb_array_elements(q.limits::jsonb) AS l) AS names,
               ARRAY(SELECT l ->> 1 FROM jsonb_array_elements(q.limits::jsonb) AS l) AS keys
          FROM {exchange.requests.numbered_rows} ORDER BY q.ord
    LOOP
        SELECT t.signal, t.permits, t.has_tokens INTO v_task FROM {schema}.holdfast_task AS t
         WHERE t.run = v_request.run AND t.unit = v_request.unit AND (t.owner = v_request.owner) IS TRUE
           AND t.epoch = v_request.epoch;
        IF NOT FOUND THEN
            results := results || {PermitResult.LOST};
            CONTINUE;
        END IF;
        v_added := {schema}.holdfast_add_request(
            v_now, v_request.run, v_request.unit, v_request.owner, v_request.epoch, v_request.step, v_request.attempt,
            v_request.names, v_request.keys, v_request.priority, v_request.until_end, v_request.park,
            v_task.permits, v_task.has_tokens);
        results := results || CASE WHEN v_added.held THEN {PermitResult.HELD} ELSE {PermitResult.WAITING} END;
        v_joined := v_joined || v_added.joined;
        IF v_request.park AND NOT v_added.held THEN
            UPDATE {schema}.holdfast_task
               SET owner = NULL, lease_until = NULL, run_at = NULL, lost = losses > 0, signal = 0
             WHERE run = v_request.run AND unit = v_request.unit;
            IF v_task.signal & {Signal.PAUSE} <> 0 THEN
                UPDATE {schema}.holdfast_run SET status = {Status.PAUSED}, note = NULL, updated_at = v_now
                 WHERE id = v_request.run;
            END IF;
            SELECT r.status = {Status.PAUSED} INTO v_paused FROM {schema}.holdfast_run AS r WHERE r.id = v_request.run;
            -- A task without an owner in a paused queue requests its permit when the queue is resumed.
            UPDATE {schema}.holdfast_task AS t SET run_at = v_now
             WHERE t.run = v_request.run AND t.unit = v_request.unit AND NOT v_paused
               AND EXISTS (SELECT FROM {schema}.holdfast_queue AS q WHERE q.name = t.queue AND q.paused);
            -- A node of a paused graph that was claimed before the pause requests its permit after the resume.
            IF FOUND OR v_paused THEN
                PERFORM {schema}.holdfast_join_groups(v_joined);
                v_joined := '{}';
                DELETE FROM {schema}.holdfast_permit
                 WHERE run = v_request.run AND unit = v_request.unit AND state < {PermitState.HELD};
            END IF;
        END IF;
    END LOOP;
    PERFORM {schema}.holdfast_join_groups(v_joined);
    v_woken := {schema}.holdfast_wake_granted(v_now);
    IF v_woken > 0 THEN
        PERFORM pg_notify('{channel}', p_store);
    END IF;
    IF EXISTS (SELECT FROM {schema}.holdfast_permit
                WHERE state = {PermitState.GRANTED} AND owner IS NOT NULL AND owner <> p_owner) THEN
        PERFORM pg_notify('{channel}', p_store);
    END IF;
    WITH held AS (
        UPDATE {schema}.holdfast_permit SET state = {PermitState.HELD}
         WHERE state = {PermitState.GRANTED} AND owner = p_owner RETURNING *
    )
    SELECT array_agg(run), array_agg(unit), array_agg(step), array_agg(attempt), array_agg(epoch)
      INTO granted_run, granted_unit, granted_step, granted_attempt, granted_epoch FROM held;
    IF p_all THEN
        SELECT array_agg(run), array_agg(unit), array_agg(step), array_agg(attempt), array_agg(epoch)
          INTO granted_run, granted_unit, granted_step, granted_attempt, granted_epoch
          FROM {schema}.holdfast_permit WHERE state = {PermitState.HELD} AND owner = p_owner;
    END IF;
    IF EXISTS (SELECT FROM {schema}.holdfast_permit
                WHERE state = {PermitState.GRANTED} AND owner IS NULL AND NOT woken) THEN
        next_at := v_now + {WAKE_RETRY_MS};
    ELSE
        SELECT min(ready_at) INTO next_at FROM {schema}.holdfast_limit_use WHERE ready_at IS NOT NULL;
    END IF;
    due := v_woken > 0;
    RETURN NEXT;
END $$;

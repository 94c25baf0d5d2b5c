-- Control requests: pause, resume, terminate, cancel, restart, move.

CREATE OR REPLACE FUNCTION {schema}.holdfast_pause(p_now BIGINT, p_store TEXT, p_workflow TEXT, p_instance_id TEXT)
RETURNS SETOF {schema}.holdfast_record LANGUAGE plpgsql
{planner.nested_loops} AS $$
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT := {schema}.holdfast_lock_current_run(p_workflow, p_instance_id);
    v_record {schema}.holdfast_record;
BEGIN
    SELECT * INTO v_record FROM {schema}.holdfast_record WHERE run = v_run;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_record.epoch IS NOT NULL AND v_record.status <> {Status.PAUSED} THEN
        IF v_record.owner IS NULL THEN
            PERFORM {schema}.holdfast_set_paused(v_now, v_run, NULL);
        ELSE
            UPDATE {schema}.holdfast_task SET signal = signal | {Signal.PAUSE} WHERE run = v_run AND unit = 0;
        END IF;
        PERFORM pg_notify('{channel}', p_store);
    END IF;
    RETURN NEXT v_record;
END $$;

-- Pause a run. Its task is kept, because it holds the epoch, with no owner and no due time. Units that have an owner
-- continue; the other units lose their due times.
CREATE OR REPLACE FUNCTION {schema}.holdfast_set_paused(p_now BIGINT, p_run BIGINT, p_note BYTEA) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.holdfast_task SET owner = NULL, lease_until = NULL, resume_at = run_at, run_at = NULL, signal = 0
     WHERE run = p_run AND unit = 0;
    PERFORM {schema}.holdfast_pause_units(p_run);
    UPDATE {schema}.holdfast_run SET status = {Status.PAUSED}, note = p_note, updated_at = p_now WHERE id = p_run;
END $$;

-- Keep the due times of a run's units that have no owner for the resume. Called before the row of the run is updated, because a claim
-- of such a unit updates that row while it holds the unit's lock.
CREATE OR REPLACE FUNCTION {schema}.holdfast_pause_units(p_run BIGINT) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.holdfast_task SET resume_at = run_at, run_at = NULL
     WHERE run = p_run AND unit > 0 AND owner IS NULL AND run_at IS NOT NULL;
END $$;

-- Clear the due time of a released task if its run is paused: a unit, or an expired run that was claimed to be ended
-- but was not.
CREATE OR REPLACE FUNCTION {schema}.holdfast_keep_paused(p_run BIGINT, p_unit BIGINT) RETURNS void LANGUAGE sql AS $$
    UPDATE {schema}.holdfast_task SET resume_at = run_at, run_at = NULL
     WHERE run = p_run AND unit = p_unit
       AND EXISTS (SELECT FROM {schema}.holdfast_run WHERE id = p_run AND status = {Status.PAUSED})
$$;

-- Resume a paused run. A run that has begun is due at once, so that its code waits anew. A run that has not begun, unless
-- it has received a request that it has to answer, and a unit that waits for its next attempt, keep their due times.
CREATE OR REPLACE FUNCTION {schema}.holdfast_resume(p_now BIGINT, p_store TEXT, p_workflow TEXT, p_instance_id TEXT)
RETURNS SETOF {schema}.holdfast_record LANGUAGE plpgsql
{planner.nested_loops} AS $$
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT := {schema}.holdfast_lock_current_run(p_workflow, p_instance_id);
    v_record {schema}.holdfast_record;
    v_held BOOLEAN := EXISTS (SELECT FROM {schema}.holdfast_task
                               WHERE run = v_run AND unit = 0 AND held_at IS NOT NULL);
    v_begun BOOLEAN;
BEGIN
    SELECT * INTO v_record FROM {schema}.holdfast_record WHERE run = v_run;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_record.status = {Status.PAUSED} THEN
        v_begun := v_record.started_at IS NOT NULL
            OR EXISTS (SELECT FROM {schema}.holdfast_fact AS f WHERE f.run = v_run AND f.state = {FactState.START})
            OR EXISTS (SELECT FROM {schema}.holdfast_event AS e
                        WHERE e.run = v_run AND e.delivered_at IS NULL AND e.type LIKE '@%');
        UPDATE {schema}.holdfast_task
           SET run_at = CASE WHEN v_held THEN NULL
                             WHEN unit > 0 THEN greatest(v_now, resume_at)
                             WHEN v_begun THEN v_now
                             WHEN coalesce(missing, 0) = 0 THEN greatest(v_now, resume_at) END,
               resume_at = NULL, kind = {TaskKind.RESUME}, bucket = {Bucket.CONTINUING}, losses = lost::int
         WHERE run = v_run AND (unit = 0 OR (owner IS NULL AND missing = 0));
        UPDATE {schema}.holdfast_run
           SET status = CASE WHEN EXISTS (SELECT FROM {schema}.holdfast_task AS t
                                           WHERE t.run = v_run AND (t.owner IS NOT NULL OR t.run_at <= v_now))
                             THEN {Status.ACTIVE} ELSE {Status.WAITING} END,
               note = NULL, updated_at = v_now
         WHERE id = v_run;
        PERFORM pg_notify('{channel}', p_store);
    ELSIF v_record.signal & {Signal.PAUSE} <> 0 THEN
        UPDATE {schema}.holdfast_task SET signal = signal & ~{Signal.PAUSE} WHERE run = v_run AND unit = 0;
    END IF;
    RETURN NEXT v_record;
END $$;

-- Set the version of a run; p_pinned: pin it to the version, if it is not pinned yet. Tasks are locked first, unit 0
-- before the others, as everywhere. The epoch of a run without an owner is increased: a worker of the old version may
-- have the run's machine in its cache, which is valid for the next epoch only.
CREATE OR REPLACE FUNCTION {schema}.holdfast_move(
    p_now BIGINT, p_store TEXT, p_workflow TEXT, p_instance_id TEXT, p_version TEXT, p_pinned BOOLEAN
) RETURNS SETOF {schema}.holdfast_record LANGUAGE plpgsql
{planner.nested_loops} AS $$
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT := {schema}.holdfast_lock_current_run(p_workflow, p_instance_id);
    v_record {schema}.holdfast_record;
BEGIN
    SELECT * INTO v_record FROM {schema}.holdfast_record WHERE run = v_run;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_record.epoch IS NOT NULL THEN
        PERFORM FROM {schema}.holdfast_task WHERE run = v_run ORDER BY unit FOR NO KEY UPDATE;
        UPDATE {schema}.holdfast_task
           SET pin = CASE WHEN p_pinned OR v_record.pinned THEN p_version ELSE '' END,
               epoch = epoch + (owner IS NULL AND unit = 0)::int
         WHERE run = v_run;
        UPDATE {schema}.holdfast_run
           SET version = p_version, pinned = p_pinned OR v_record.pinned, updated_at = v_now WHERE id = v_run;
        PERFORM pg_notify('{channel}', p_store);
    END IF;
    RETURN NEXT v_record;
END $$;

CREATE OR REPLACE FUNCTION {schema}.holdfast_terminate(
    p_now BIGINT, p_store TEXT, p_workflow TEXT, p_instance_id TEXT, p_reason BYTEA
) RETURNS TABLE (ended BIGINT[], woken BIGINT[], work BOOLEAN, r {schema}.holdfast_record) LANGUAGE plpgsql
{planner.nested_loops} AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT := {schema}.holdfast_lock_for_end(p_workflow, p_instance_id);
    v_record {schema}.holdfast_record;
    v_affected {schema}.holdfast_affected;
BEGIN
    SELECT * INTO v_record FROM {schema}.holdfast_record WHERE run = v_run;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_record.epoch IS NOT NULL THEN
        v_affected := {schema}.holdfast_end_run(
            v_now, p_store, v_run, {Status.TERMINATED}, NULL, NULL, p_reason, NULL, false);
        v_affected.ended := v_run || v_affected.ended;
    END IF;
    RETURN QUERY SELECT v_affected.ended, v_affected.woken, v_affected.work, v_record;
END $$;

CREATE OR REPLACE FUNCTION {schema}.holdfast_cancel(
    p_now BIGINT, p_store TEXT, p_workflow TEXT, p_instance_id TEXT, p_payload BYTEA, p_reason BYTEA,
    p_deadline_ms BIGINT
) RETURNS TABLE (ended BIGINT[], woken BIGINT[], work BOOLEAN, r {schema}.holdfast_record) LANGUAGE plpgsql
{planner.nested_loops} AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT := {schema}.holdfast_lock_for_end(p_workflow, p_instance_id);
    v_record {schema}.holdfast_record;
    v_affected {schema}.holdfast_affected;
BEGIN
    SELECT * INTO v_record FROM {schema}.holdfast_record WHERE run = v_run;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_record.epoch IS NOT NULL THEN
        v_affected := {schema}.holdfast_request_cancel(v_now, p_store, v_run, p_payload, p_reason, p_deadline_ms, NULL);
        PERFORM pg_notify('{channel}', p_store);
    END IF;
    RETURN QUERY SELECT v_affected.ended, v_affected.woken, v_affected.work, v_record;
END $$;

-- Restart a run. A retry whose earlier attempt was committed finds the new run by p_token.
CREATE OR REPLACE FUNCTION {schema}.holdfast_restart(
    p_now BIGINT, p_store TEXT, p_workflow TEXT, p_instance_id TEXT, p_reason BYTEA, p_expires_ms BIGINT, p_expiry TEXT,
    p_options BYTEA, p_token BIGINT, p_only BIGINT, p_unit BIGINT[], p_unit_key BYTEA[], p_unit_missing BIGINT[]
) RETURNS TABLE (ended BIGINT[], woken BIGINT[], work BOOLEAN, r {schema}.holdfast_record) LANGUAGE plpgsql
{planner.nested_loops} AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT := {schema}.holdfast_lock_for_end(p_workflow, p_instance_id);
    v_old {schema}.holdfast_run;
    v_affected {schema}.holdfast_affected;
BEGIN
    SELECT * INTO v_old FROM {schema}.holdfast_run WHERE id = v_run;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_old.made_by IS DISTINCT FROM p_token AND (p_only IS NULL OR v_old.id = p_only) THEN
        v_run := {schema}.holdfast_insert_successor(
            v_now, p_store, v_old.id, p_token, v_old.params, v_now, 1, v_now + p_expires_ms, p_expiry, p_options,
            p_unit, p_unit_key, p_unit_missing, false);
        IF v_old.completed_at IS NULL THEN
            v_affected := {schema}.holdfast_end_run(
                v_now, p_store, v_old.id, {Status.TERMINATED}, NULL, NULL, p_reason, v_run, false);
            v_affected.ended := v_old.id || v_affected.ended;
        END IF;
    END IF;
    RETURN QUERY
        SELECT v_affected.ended, v_affected.woken, true, rec FROM {schema}.holdfast_record AS rec WHERE rec.run = v_run;
END $$;

-- Send a RESOLVE event to an unfinished run.
CREATE OR REPLACE FUNCTION {schema}.holdfast_resolve(
    p_now BIGINT, p_store TEXT, p_workflow TEXT, p_instance_id TEXT, p_payload BYTEA
) RETURNS TABLE (ended BIGINT[], woken BIGINT[], work BOOLEAN, r {schema}.holdfast_record) LANGUAGE plpgsql
{planner.nested_loops} AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT := {schema}.holdfast_lock_current_run(p_workflow, p_instance_id);
    v_record {schema}.holdfast_record;
    v_affected {schema}.holdfast_affected;
BEGIN
    SELECT * INTO v_record FROM {schema}.holdfast_record WHERE run = v_run;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_record.epoch IS NOT NULL THEN
        v_affected := {schema}.holdfast_send_engine_event(v_now, v_run, {RESOLVE}, p_payload, NULL);
        PERFORM pg_notify('{channel}', p_store);
    END IF;
    RETURN QUERY SELECT v_affected.ended, v_affected.woken, v_affected.work, v_record;
END $$;

-- Reply to an ask in the mailbox of a run in place of its code. done: the event has this reply now, also if an earlier
-- attempt of this call was committed. The tasks of both runs are locked in lock order.
CREATE OR REPLACE FUNCTION {schema}.holdfast_reply_by_hand(
    p_now BIGINT, p_store TEXT, p_workflow TEXT, p_instance_id TEXT, p_number BIGINT, p_event BIGINT, p_ok BOOLEAN,
    p_payload BYTEA
) RETURNS TABLE (
    done BOOLEAN, ended BIGINT[], woken BIGINT[], work BOOLEAN, r {schema}.holdfast_record
) LANGUAGE plpgsql
{planner.nested_loops} AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT;
    v_operation {schema}.holdfast_operation;
    v_record {schema}.holdfast_record;
    v_affected {schema}.holdfast_affected;
    v_done BOOLEAN := false;
BEGIN
    PERFORM {schema}.holdfast_lock_affected(NULL, array_remove(ARRAY[x.run, (
                SELECT {schema}.holdfast_run_of_pid(e.sender) FROM {schema}.holdfast_event AS e
                 WHERE e.run = x.run AND e.n = p_event)], NULL))
       FROM (SELECT {schema}.holdfast_current_run(p_workflow, p_instance_id) AS run) AS x;
    v_run := {schema}.holdfast_lock_current_run(p_workflow, p_instance_id);
    SELECT * INTO v_record FROM {schema}.holdfast_record WHERE run = v_run;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_record.epoch IS NOT NULL AND v_record.number = p_number
       AND EXISTS (SELECT FROM {schema}.holdfast_event AS e
                    WHERE e.run = v_run AND e.n = p_event AND e.ask IS NOT NULL) THEN
        v_operation.number := p_event;
        v_operation.ok := p_ok;
        v_operation.payload := p_payload;
        v_affected := {schema}.holdfast_reply(
            v_now, v_run, {schema}.holdfast_pid(p_workflow, p_instance_id), v_operation);
        SELECT e.reply_ok = p_ok AND e.reply IS NOT DISTINCT FROM p_payload INTO v_done
          FROM {schema}.holdfast_event AS e WHERE e.run = v_run AND e.n = p_event;
        PERFORM pg_notify('{channel}', p_store);  -- the asker may be a client in another process
    END IF;
    RETURN QUERY SELECT v_done, v_affected.ended, v_affected.woken, v_affected.work, v_record;
END $$;

-- Write the outcome of a unit that was decided by hand, and delete the tasks of the unit and of p_removed. The unit has
-- no task if its own outcome was written first, or if an earlier attempt of this call was committed; the second is
-- recognised by its fact. p_f_*: the facts, that of the unit first.
CREATE OR REPLACE FUNCTION {schema}.holdfast_resolve_unit(
    p_now BIGINT, p_store TEXT, p_workflow TEXT, p_instance_id TEXT, p_run BIGINT, p_unit BIGINT, p_removed BIGINT[],
    p_m_unit BIGINT[], p_m_decrement BIGINT[], {advance.facts.parameters}
) RETURNS TABLE (done BOOLEAN, r {schema}.holdfast_record) LANGUAGE plpgsql
{planner.nested_loops} AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT := {schema}.holdfast_lock_current_run(p_workflow, p_instance_id);
    v_record {schema}.holdfast_record;
    v_paused BIGINT[] := '{}';
    v_results RECORD;
    v_taken {schema}.holdfast_taken;
    v_done BOOLEAN := false;
BEGIN
    SELECT * INTO v_record FROM {schema}.holdfast_record WHERE run = v_run;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_run = p_run AND v_record.epoch IS NOT NULL THEN
        DELETE FROM {schema}.holdfast_task WHERE run = p_run AND unit = p_unit AND unit > 0;
        v_done := FOUND;
    END IF;
    IF v_done THEN
        DELETE FROM {schema}.holdfast_task WHERE run = p_run AND unit = ANY (p_removed) AND unit > 0;
        IF v_record.status = {Status.PAUSED} THEN
            v_paused := ARRAY[p_run];
        END IF;
        v_results := {schema}.holdfast_add_unit_facts(ARRAY[p_run], {advance.facts.names});
        v_taken := {schema}.holdfast_take_due(
            v_now, NULL, NULL, 0, NULL, v_paused, array_fill(p_run, ARRAY[cardinality(p_m_unit)]), p_m_unit,
            p_m_decrement, NULL, NULL, v_results.run, v_results.count, NULL, NULL);
        PERFORM pg_notify('{channel}', p_store);
    ELSE
        v_done := EXISTS (
            SELECT FROM {schema}.holdfast_fact
             WHERE run = p_run AND state = p_f_state[1] AND key = p_f_key[1] AND n = p_f_n[1]
               AND event_type = {RESOLVE} AND at = p_f_at[1] AND value IS NOT DISTINCT FROM p_f_value[1]);
    END IF;
    RETURN QUERY SELECT v_done, v_record;
END $$;

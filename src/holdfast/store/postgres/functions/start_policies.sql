-- Start policies (store/protocol/start_policies.py).
--
-- Starts of one group or key follow each other by an advisory lock. Of the tasks of a group, the task of the executed run
-- is locked before those of held runs: the end of the executed run, which has its lock, then locks the next held one.

CREATE OR REPLACE FUNCTION {schema}.holdfast_lock_starts(p_workflow TEXT, p_key TEXT) RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(hashtextextended('holdfast starts of {schema} ' || p_workflow || ' ' || p_key, 0))
$$;

-- The executed run of a group, with its task locked, other than p_besides; NULL: there is none. The run may get a
-- successor, or end, while this call waits.
CREATE OR REPLACE FUNCTION {schema}.holdfast_lock_executed(p_workflow TEXT, p_single TEXT, p_besides BIGINT)
RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    v_run BIGINT;
BEGIN
    LOOP
        SELECT t.run INTO v_run FROM {schema}.holdfast_task AS t
         WHERE t.workflow = p_workflow AND t.single = p_single AND t.held_at IS NULL AND t.run <> p_besides LIMIT 1;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        PERFORM FROM {schema}.holdfast_task AS t WHERE t.run = v_run AND t.unit = 0 FOR NO KEY UPDATE;
        IF FOUND THEN
            RETURN v_run;
        END IF;
    END LOOP;
END $$;

-- Add a run that this transaction has inserted to a group. It is held if another one is executed. p_besides: a run that
-- ends in this transaction, whose place the new run takes; its task is locked.
CREATE OR REPLACE FUNCTION {schema}.holdfast_join_group(
    p_run BIGINT, p_workflow TEXT, p_single TEXT, p_due BIGINT, p_besides BIGINT
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_takes_place BOOLEAN := EXISTS (SELECT FROM {schema}.holdfast_task AS t
                                      WHERE t.run = p_besides AND t.unit = 0 AND t.single = p_single
                                        AND t.held_at IS NULL);
BEGIN
    IF NOT v_takes_place
       AND {schema}.holdfast_lock_executed(p_workflow, p_single, coalesce(p_besides, 0)) IS NOT NULL THEN
        UPDATE {schema}.holdfast_task AS t SET run_at = NULL, held_at = CASE WHEN t.unit = 0 THEN p_due END
         WHERE t.run = p_run;
        UPDATE {schema}.holdfast_run SET status = {Status.WAITING} WHERE id = p_run;
    END IF;
    UPDATE {schema}.holdfast_task SET single = p_single WHERE run = p_run AND unit = 0;
END $$;

-- Add the successor of a singleton, or a run that continues its history, to its group. The options of the run name the
-- group. The lock is not taken if the run takes the place of the executed one: a start may wait for that run's task.
CREATE OR REPLACE FUNCTION {schema}.holdfast_inherit_group(p_run BIGINT, p_old BIGINT, p_due BIGINT) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_workflow TEXT;
    v_single TEXT;
BEGIN
    SELECT r.workflow, {schema}.holdfast_json_member(r.options, 'single') #>> '{}' INTO v_workflow, v_single
      FROM {schema}.holdfast_run AS r WHERE r.id = p_run;
    IF v_single IS NULL THEN
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM {schema}.holdfast_task AS t WHERE t.run = p_old AND t.unit = 0) THEN
        PERFORM {schema}.holdfast_lock_starts(v_workflow, 'single ' || v_single);
    END IF;
    PERFORM {schema}.holdfast_join_group(p_run, v_workflow, v_single, p_due, p_old);
END $$;

-- The executed run of a group has ended: the next held one is due, unless the run has a successor. A paused run is not
-- held any more either; its resume makes it due.
CREATE OR REPLACE FUNCTION {schema}.holdfast_single_ended() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_next {schema}.holdfast_task;
BEGIN
    LOOP
        IF EXISTS (SELECT FROM {schema}.holdfast_task AS t
                    WHERE t.workflow = OLD.workflow AND t.single = OLD.single AND t.held_at IS NULL) THEN
            RETURN NULL;
        END IF;
        SELECT * INTO v_next FROM {schema}.holdfast_task AS t
         WHERE t.workflow = OLD.workflow AND t.single = OLD.single AND t.held_at IS NOT NULL
         ORDER BY t.workflow, t.single, t.run LIMIT 1;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        PERFORM FROM {schema}.holdfast_task AS t
          WHERE t.run = v_next.run AND t.unit = 0 AND t.held_at IS NOT NULL FOR NO KEY UPDATE;
        EXIT WHEN FOUND;  -- otherwise it has ended, or has a successor
    END LOOP;
    UPDATE {schema}.holdfast_task AS t SET run_at = v_next.held_at
     WHERE t.run = v_next.run AND coalesce(t.missing, 0) = 0
       AND (SELECT r.status FROM {schema}.holdfast_run AS r WHERE r.id = t.run) <> {Status.PAUSED};
    UPDATE {schema}.holdfast_task AS t SET held_at = NULL WHERE t.run = v_next.run AND t.unit = 0;
    PERFORM pg_notify('{channel}', 'singletons');
    RETURN NULL;
END $$;

-- True if a worker may have executed code of the run, whose task is given.
CREATE OR REPLACE FUNCTION {schema}.holdfast_has_begun(p_task {schema}.holdfast_task) RETURNS BOOLEAN LANGUAGE sql STABLE
AS $$
    SELECT p_task.epoch > 0 OR EXISTS (SELECT FROM {schema}.holdfast_fact AS f
                                        WHERE f.run = p_task.run AND f.state = {FactState.START})
$$;

-- Replace the runs of a group that have not begun; cancel the others if p_cancel.
CREATE OR REPLACE FUNCTION {schema}.holdfast_make_room(
    p_now BIGINT, p_store TEXT, p_workflow TEXT, p_single TEXT, p_cancel BOOLEAN
) RETURNS {schema}.holdfast_affected LANGUAGE plpgsql AS $$
DECLARE
    v_affected {schema}.holdfast_affected;
    v_task {schema}.holdfast_task;
BEGIN
    PERFORM {schema}.holdfast_lock_executed(p_workflow, p_single, 0);
    FOR v_task IN
        SELECT * FROM {schema}.holdfast_task AS t
         WHERE t.workflow = p_workflow AND t.single = p_single AND t.unit = 0
         ORDER BY t.held_at IS NOT NULL, t.run FOR NO KEY UPDATE
    LOOP
        IF NOT {schema}.holdfast_has_begun(v_task) THEN
            PERFORM {schema}.holdfast_write_tombstone(p_now, v_task.run, {REPLACED}::bytea);
            v_affected := {schema}.holdfast_merge_affected(v_affected, {schema}.holdfast_end_run(
                p_now, p_store, v_task.run, {Status.CANCELLED}, NULL,
                {schema}.holdfast_cancelled_error({REPLACED}::bytea), NULL, NULL, false));
            v_affected.ended := v_task.run || v_affected.ended;
        ELSIF p_cancel AND NOT EXISTS (SELECT FROM {schema}.holdfast_event AS e
                                        WHERE e.run = v_task.run AND e.type = {CANCEL}) THEN
            v_affected := {schema}.holdfast_merge_affected(v_affected, {schema}.holdfast_request_cancel(
                p_now, p_store, v_task.run,
                '{"reason":'::bytea || {schema}.holdfast_json_string({SUPERSEDED}::bytea) || ',"deadlineMs":null}'::bytea,
                {SUPERSEDED}::bytea, NULL, NULL));
            PERFORM pg_notify('{channel}', p_store);
        END IF;
    END LOOP;
    RETURN v_affected;
END $$;

-- The pending run with this key, with its task locked; NULL: there is none. Only the last run can be pending.
CREATE OR REPLACE FUNCTION {schema}.holdfast_lock_pending(p_workflow TEXT, p_gather TEXT)
RETURNS {schema}.holdfast_task LANGUAGE plpgsql AS $$
DECLARE
    v_task {schema}.holdfast_task;
BEGIN
    SELECT * INTO v_task FROM {schema}.holdfast_task AS t
     WHERE t.workflow = p_workflow AND t.gather = p_gather AND t.epoch = 0
     ORDER BY t.workflow, t.gather, t.run DESC LIMIT 1;
    SELECT * INTO v_task FROM {schema}.holdfast_task AS t
     WHERE t.run = v_task.run AND t.unit = 0 AND t.epoch = 0 AND t.owner IS NULL FOR NO KEY UPDATE;
    IF NOT FOUND OR {schema}.holdfast_has_begun(v_task) THEN
        RETURN NULL;
    END IF;
    RETURN v_task;
END $$;

-- Replace the params of a pending run, and move its due time.
CREATE OR REPLACE FUNCTION {schema}.holdfast_debounce(
    p_now BIGINT, p_task {schema}.holdfast_task, p_new {schema}.holdfast_new_run, p_max_wait BIGINT
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_due BIGINT := p_now + p_new.delay_ms;
BEGIN
    UPDATE {schema}.holdfast_run SET params = p_new.params, options = p_new.options, updated_at = p_now
     WHERE id = p_task.run;
    IF p_max_wait IS NOT NULL THEN
        SELECT greatest(p_now, least(v_due, r.created_at + p_max_wait)) INTO v_due
          FROM {schema}.holdfast_run AS r WHERE r.id = p_task.run;
    END IF;
    UPDATE {schema}.holdfast_task
       SET expires_at = v_due - p_new.delay_ms + p_new.expires_ms, expiry = p_new.expiry,
           gathered = (p_new.token || gathered)[1:{MAX_GATHERED}]
     WHERE run = p_task.run AND unit = 0;
    UPDATE {schema}.holdfast_task SET run_at = v_due WHERE run = p_task.run AND run_at IS NOT NULL;
END $$;

-- Append an item to a pending batch. False: the batch is full.
CREATE OR REPLACE FUNCTION {schema}.holdfast_append_item(
    p_now BIGINT, p_task {schema}.holdfast_task, p_new {schema}.holdfast_new_run, p_size BIGINT, p_max_bytes BIGINT
) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
DECLARE
    v_length BIGINT;
    v_fits BOOLEAN;
BEGIN
    IF p_task.items >= p_size THEN
        RETURN false;
    END IF;
    SELECT length(r.params) INTO v_length FROM {schema}.holdfast_run AS r WHERE r.id = p_task.run;
    v_fits := v_length + length(p_new.params) <= p_max_bytes;
    IF v_fits THEN
        -- The last bracket of one list and the first of the other become a comma.
        UPDATE {schema}.holdfast_run
           SET params = substring(params FROM 1 FOR length(params) - 1) || ','::bytea
                        || substring(p_new.params FROM 2), updated_at = p_now
         WHERE id = p_task.run;
        UPDATE {schema}.holdfast_task SET items = items + 1, gathered = p_new.token || gathered
         WHERE run = p_task.run AND unit = 0;
    END IF;
    IF NOT v_fits OR p_task.items + 1 >= p_size THEN
        UPDATE {schema}.holdfast_task SET run_at = p_now WHERE run = p_task.run AND run_at IS NOT NULL;
    END IF;
    RETURN v_fits;
END $$;

-- Grant the permit of a new run that no worker has claimed yet. Returns the name of the limit without room; NULL: granted.
CREATE OR REPLACE FUNCTION {schema}.holdfast_take_for_start(
    p_now BIGINT, p_run BIGINT, p_names TEXT[], p_keys TEXT[], p_priority BIGINT, p_until_end BOOLEAN
) RETURNS TEXT LANGUAGE plpgsql AS $$
DECLARE
    v_group {schema}.holdfast_permit_group;
BEGIN
    PERFORM {schema}.holdfast_lock_permits();
    PERFORM {schema}.holdfast_settle_permits(p_now);
    SELECT * INTO v_group FROM {schema}.holdfast_permit_group AS g
     WHERE g.names = p_names AND g.keys = p_keys AND g.needs_tokens;
    IF v_group.waiting > 0 THEN
        RETURN p_names[1];
    END IF;
    FOR i IN 1..cardinality(p_names) LOOP
        IF NOT (SELECT r.free FROM {schema}.holdfast_room(p_now, p_names[i], p_keys[i], true) AS r) THEN
            RETURN p_names[i];
        END IF;
    END LOOP;
    IF v_group.id IS NULL THEN
        v_group := {schema}.holdfast_new_permit_group(p_now, p_names, p_keys, true);
    END IF;
    UPDATE {schema}.holdfast_task SET permits = true WHERE run = p_run AND unit = 0;
    INSERT INTO {schema}.holdfast_permit (run, unit, step, attempt, grp, state, priority, tag, until_end, owner, epoch,
                                          parked, woken)
    VALUES (p_run, 0, ''::bytea, 0, v_group.id, {PermitState.GRANTED}, p_priority, 0, p_until_end, NULL, 0, 0, true);
    PERFORM {schema}.holdfast_take_permits(p_now, p_names, p_keys, true, 0, 1);
    PERFORM {schema}.holdfast_mark_tokens(p_run, p_names);
    RETURN NULL;
END $$;

-- Create one run with a start policy, or find the run that stands for it. p_policy names the policy, p_key its group or
-- pending run. limit_name: the limit without room of a run that was refused or dropped.
CREATE OR REPLACE FUNCTION {schema}.holdfast_create_with_policy(
    p_now BIGINT, p_store TEXT, p_is_retry BOOLEAN, p_new {schema}.holdfast_new_run[],
    p_parts {schema}.holdfast_plans_and_units, p_policy TEXT, p_key TEXT, p_max_wait BIGINT, p_size BIGINT,
    p_max_bytes BIGINT, p_names TEXT[], p_keys TEXT[], p_until_end BOOLEAN
) RETURNS TABLE (result TEXT, run BIGINT, ended BIGINT[], woken BIGINT[], work BOOLEAN, limit_name TEXT) LANGUAGE plpgsql
{planner.nested_loops} AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_new {schema}.holdfast_new_run := p_new[1];
    v_task {schema}.holdfast_task;
    v_affected {schema}.holdfast_affected;
    v_limit TEXT;
    v_exists BOOLEAN;
BEGIN
    PERFORM {schema}.holdfast_lock_starts(v_new.workflow, p_key);
    v_exists := {schema}.holdfast_current_run(v_new.workflow, v_new.instance_id) IS NOT NULL;  -- also on a retry
    IF NOT v_exists AND p_policy = {OnSingleton.SKIP} THEN
        run := {schema}.holdfast_lock_executed(v_new.workflow, substring(p_key FROM 8), 0);
    ELSIF NOT v_exists AND p_policy IN ({OnSingleton.CANCEL_RUNNING}, {OnSingleton.REPLACE_WAITING}) THEN
        v_affected := {schema}.holdfast_make_room(v_now, p_store, v_new.workflow, substring(p_key FROM 8),
                                                  p_policy = {OnSingleton.CANCEL_RUNNING});
    ELSIF NOT v_exists AND p_policy IN ('debounce', 'batch') THEN
        IF p_is_retry THEN
            SELECT t.run INTO run FROM {schema}.holdfast_task AS t
             WHERE t.workflow = v_new.workflow AND t.gather = p_key AND t.gathered @> ARRAY[v_new.token];
        END IF;
        v_task := {schema}.holdfast_lock_pending(v_new.workflow, p_key);
        IF run IS NULL AND v_task.run IS NOT NULL AND p_policy = 'debounce' THEN
            PERFORM {schema}.holdfast_debounce(v_now, v_task, v_new, p_max_wait);
            run := v_task.run;
        ELSIF run IS NULL AND v_task.run IS NOT NULL
              AND {schema}.holdfast_append_item(v_now, v_task, v_new, p_size, p_max_bytes) THEN
            run := v_task.run;
        END IF;
        PERFORM pg_notify('{channel}', p_store);
    END IF;
    IF run IS NOT NULL THEN
        result := {RequestResult.EXISTING};
        RETURN NEXT;
        RETURN;
    END IF;
    BEGIN
        SELECT c.result, c.run, c.ended, c.woken, c.work INTO result, run, ended, woken, work
          FROM {schema}.holdfast_create(p_now, p_store, p_is_retry, p_new, p_parts) AS c;
        IF NOT v_exists AND p_names IS NOT NULL THEN
            v_limit := {schema}.holdfast_take_for_start(v_now, run, p_names, p_keys, v_new.priority, p_until_end);
            IF v_limit IS NOT NULL AND p_policy = 'refuse' THEN
                RAISE EXCEPTION USING ERRCODE = {NO_ROOM}, MESSAGE = v_limit;
            ELSIF v_limit IS NOT NULL THEN
                v_affected := {schema}.holdfast_end_run(
                    v_now, p_store, run, {Status.CANCELLED}, NULL, {schema}.holdfast_cancelled_error(
                        'dropped: limit '''::bytea || convert_to(v_limit, 'UTF8') || ''' has no room'::bytea),
                    NULL, NULL, false);
                ended := ARRAY[run];
                result := {RequestResult.EXISTING};
            END IF;
        ELSIF NOT v_exists AND p_policy IN ({OnSingleton}) THEN
            PERFORM {schema}.holdfast_join_group(
                run, v_new.workflow, substring(p_key FROM 8), v_now + v_new.delay_ms, NULL);
        ELSIF NOT v_exists THEN
            UPDATE {schema}.holdfast_task AS t
               SET gather = p_key, items = CASE WHEN p_policy = 'batch' THEN 1 END, gathered = ARRAY[v_new.token]
             WHERE t.run = holdfast_create_with_policy.run AND t.unit = 0;
            UPDATE {schema}.holdfast_task AS t SET run_at = v_now
             WHERE t.run = holdfast_create_with_policy.run AND t.run_at IS NOT NULL AND p_size = 1;
        END IF;
    EXCEPTION WHEN SQLSTATE {NO_ROOM} THEN
        result := {RequestResult.LIMITED};
        run := NULL;
        limit_name := SQLERRM;
    END;
    ended := ended || v_affected.ended;
    woken := woken || v_affected.woken;
    work := coalesce(work, false) OR coalesce(v_affected.work, false);
    RETURN NEXT;
END $$;

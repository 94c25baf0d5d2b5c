-- Start policies (store/protocol/start_policies.py).
--
-- An advisory lock serializes the starts of one group or key. Of the tasks of a group, the task of the executed run is
-- locked before those of held runs: the end of the executed run, which has its lock, then locks the next held task.

CREATE OR REPLACE FUNCTION {schema}.holdfast_lock_starts(p_workflow TEXT, p_key TEXT) RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(hashtextextended('holdfast starts of {schema} ' || p_workflow || ' ' || p_key, 0))
$$;

-- The executed run of a group, other than p_besides, after its task was locked; NULL: there is none. While this call waits
-- for the lock, the run may end or get a successor: the search is then repeated.
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

-- Add the successor of a singleton, or a fork (p_old is NULL), to its group. The options of the run name the group. The
-- lock is not taken if the run takes the place of the executed one: a start may wait for that run's task.
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
    UPDATE {schema}.holdfast_task AS t
       SET run_at = CASE WHEN r.status <> {Status.PAUSED} THEN v_next.held_at END,
           resume_at = CASE WHEN r.status = {Status.PAUSED} THEN v_next.held_at END
      FROM {schema}.holdfast_run AS r
     WHERE t.run = v_next.run AND r.id = t.run AND coalesce(t.missing, 0) = 0;
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

-- Replace the runs of a group that have not begun; cancel the others if p_cancel. p_besides: the run with the id of the
-- new one, which ends in any case.
CREATE OR REPLACE FUNCTION {schema}.holdfast_make_room(
    p_now BIGINT, p_store TEXT, p_workflow TEXT, p_single TEXT, p_cancel BOOLEAN, p_besides BIGINT
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
        CONTINUE WHEN v_task.run = p_besides;
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
    -- A worker that claims a node of a graph locks only the task of the node, and uses the params that it reads then.
    PERFORM FROM {schema}.holdfast_task AS t
      WHERE t.run = v_task.run AND t.unit > 0 ORDER BY t.unit FOR NO KEY UPDATE;
    IF v_task.run IS NULL OR {schema}.holdfast_has_begun(v_task) THEN
        RETURN NULL;
    END IF;
    RETURN v_task;
END $$;

-- Move the due time of a pending run, or of its ready units; that of a paused run is for its resume.
CREATE OR REPLACE FUNCTION {schema}.holdfast_move_due(p_run BIGINT, p_due BIGINT) RETURNS void LANGUAGE sql AS $$
    UPDATE {schema}.holdfast_task
       SET run_at = CASE WHEN run_at IS NOT NULL THEN p_due END,
           resume_at = CASE WHEN resume_at IS NOT NULL THEN p_due END
     WHERE run = p_run AND (run_at IS NOT NULL OR resume_at IS NOT NULL)
$$;

-- Replace the params and the options of a pending run, and move its due time.
CREATE OR REPLACE FUNCTION {schema}.holdfast_debounce(
    p_now BIGINT, p_task {schema}.holdfast_task, p_new {schema}.holdfast_new_run, p_max_wait BIGINT
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_due BIGINT := p_now + p_new.delay_ms;
    v_instance BIGINT;
BEGIN
    UPDATE {schema}.holdfast_run
       SET params = p_new.params, options = p_new.options, memo = p_new.memo, search = p_new.search,
           queue = p_new.queue, priority = p_new.priority, version = p_new.version,
           pinned = coalesce(p_new.pinned, false), updated_at = p_now
     WHERE id = p_task.run
    RETURNING instance INTO v_instance;
    UPDATE {schema}.holdfast_task
       SET queue = p_new.queue, priority = p_new.priority, pin = CASE WHEN p_new.pinned THEN p_new.version ELSE '' END
     WHERE run = p_task.run;
    DELETE FROM {schema}.holdfast_term WHERE instance = v_instance;
    INSERT INTO {schema}.holdfast_term (instance, workflow, key, text, number)
    SELECT DISTINCT v_instance, p_new.workflow, t.key, t.text, t.number
      FROM unnest(p_new.term_key, p_new.term_text, p_new.term_number) AS t (key, text, number);
    IF p_max_wait IS NOT NULL THEN
        SELECT greatest(p_now, least(v_due, r.created_at + p_max_wait)) INTO v_due
          FROM {schema}.holdfast_run AS r WHERE r.id = p_task.run;
    END IF;
    UPDATE {schema}.holdfast_task
       SET expires_at = v_due - p_new.delay_ms + p_new.expires_ms, expiry = p_new.expiry,
           gathered = (p_new.token || gathered)[1:{MAX_GATHERED}]
     WHERE run = p_task.run AND unit = 0;
    PERFORM {schema}.holdfast_move_due(p_task.run, v_due);
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
        PERFORM {schema}.holdfast_move_due(p_task.run, p_now);
    END IF;
    RETURN v_fits;
END $$;

-- Grant the permit of a new run that no worker has claimed yet. Returns the name of the limit without room; NULL: granted.
CREATE OR REPLACE FUNCTION {schema}.holdfast_take_for_start(
    p_now BIGINT, p_run BIGINT, p_names TEXT[], p_keys TEXT[], p_priority BIGINT, p_until_end BOOLEAN
) RETURNS TEXT LANGUAGE plpgsql AS $$
DECLARE
    v_limits TEXT := (SELECT jsonb_agg(jsonb_build_array(n.name, n.key) ORDER BY n.ord)::text
                        FROM unnest(p_names, p_keys) WITH ORDINALITY AS n (name, key, ord));
    v_groups BIGINT[];
    v_take RECORD;
BEGIN
    PERFORM {schema}.holdfast_lock_permits();
    PERFORM {schema}.holdfast_settle_limits(p_now, NULL);
    v_groups := {schema}.holdfast_groups_of(p_now, ARRAY[v_limits], ARRAY[true]);
    v_take := {schema}.holdfast_take_in_order(
        p_now, v_groups, ARRAY[0::double precision], NULL, NULL, NULL, NULL);
    IF NOT v_take.taken[1] THEN
        RETURN coalesce(v_take.names[1], p_names[1]);
    END IF;
    IF v_take.fair_names IS NOT NULL THEN
        PERFORM {schema}.holdfast_set_passes(v_take.fair_names, v_take.fair_keys, v_take.fair_passes);
    END IF;
    UPDATE {schema}.holdfast_task SET permits = true WHERE run = p_run AND unit = 0;
    INSERT INTO {schema}.holdfast_permit (run, unit, step, attempt, grp, state, priority, tag, until_end, owner, epoch,
                                          parked, woken, requested_at)
    VALUES (p_run, 0, ''::bytea, 0, v_groups[1], {PermitState.GRANTED}, p_priority, 0, p_until_end, NULL, 0, 0, true,
            p_now);
    PERFORM {schema}.holdfast_mark_runs_with_tokens(ARRAY[p_run], ARRAY[v_limits]);
    RETURN NULL;
END $$;

-- True if the policies of the id let a start make a run. p_old: the current run of the instance. p_is_retry: an earlier
-- attempt of this call may have made a run.
CREATE OR REPLACE FUNCTION {schema}.holdfast_makes_run(
    p_now BIGINT, p_is_retry BOOLEAN, p_new {schema}.holdfast_new_run, p_old BIGINT
) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
DECLARE
    v_old {schema}.holdfast_run;
BEGIN
    IF p_old IS NULL THEN
        RETURN true;
    END IF;
    IF p_is_retry AND EXISTS (SELECT FROM {schema}.holdfast_run AS r
                               WHERE r.workflow = p_new.workflow AND r.instance_id = p_new.instance_id
                                 AND r.made_by = p_new.token) THEN
        RETURN false;
    END IF;
    SELECT * INTO v_old FROM {schema}.holdfast_run AS r WHERE r.id = p_old;
    IF v_old.completed_at IS NULL THEN
        RETURN coalesce(p_new.on_conflict = {OnConflict.TERMINATE_EXISTING}, false);
    ELSIF p_new.on_reuse = {OnReuse.ALLOW} THEN
        RETURN p_now >= v_old.created_at + coalesce(p_new.reuse_after_ms, 0);
    END IF;
    RETURN coalesce(p_new.on_reuse = {OnReuse.ALLOW_IF_FAILED}, false) AND v_old.status <> {Status.COMPLETE};
END $$;

-- Create one run with a start policy, or find the run that stands for the start. p_policy names the policy, p_key its group or
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
    v_old BIGINT;
    v_makes_run BOOLEAN;
BEGIN
    PERFORM {schema}.holdfast_lock_starts(v_new.workflow, p_key);
    v_old := {schema}.holdfast_current_run(v_new.workflow, v_new.instance_id);
    v_makes_run := {schema}.holdfast_makes_run(v_now, p_is_retry, v_new, v_old);
    IF v_makes_run AND p_policy = {OnSingleton.SKIP} THEN
        run := {schema}.holdfast_lock_executed(v_new.workflow, substring(p_key FROM 8), coalesce(v_old, 0));
    ELSIF v_makes_run AND p_policy IN ({OnSingleton.CANCEL_RUNNING}, {OnSingleton.REPLACE_WAITING}) THEN
        v_affected := {schema}.holdfast_make_room(v_now, p_store, v_new.workflow, substring(p_key FROM 8),
                                                  p_policy = {OnSingleton.CANCEL_RUNNING}, v_old);
    ELSIF v_makes_run AND v_old IS NOT NULL AND p_policy = {OnSingleton.QUEUE} THEN
        -- Before the run with the same id, which may be held.
        PERFORM {schema}.holdfast_lock_executed(v_new.workflow, substring(p_key FROM 8), 0);
    ELSIF v_makes_run AND p_policy IN ('debounce', 'batch') THEN
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
        v_makes_run := run = v_new.id;  -- the run with the same id may have ended meanwhile
        IF v_makes_run AND p_names IS NOT NULL THEN
            v_limit := {schema}.holdfast_take_for_start(v_now, run, p_names, p_keys, v_new.priority, p_until_end);
            IF v_limit IS NOT NULL AND p_policy = 'refuse' THEN
                RAISE EXCEPTION USING ERRCODE = {NO_ROOM}, MESSAGE = v_limit;
            ELSIF v_limit IS NOT NULL THEN
                v_affected := {schema}.holdfast_end_run(
                    v_now, p_store, run, {Status.CANCELLED}, NULL, {schema}.holdfast_cancelled_error(
                        'dropped: limit '''::bytea || convert_to(v_limit, 'UTF8') || ''' has no room'::bytea),
                    NULL, NULL, false);
                ended := run || ended;
                result := {RequestResult.EXISTING};
            END IF;
        ELSIF v_makes_run AND p_policy IN ({OnSingleton}) THEN
            PERFORM {schema}.holdfast_join_group(
                run, v_new.workflow, substring(p_key FROM 8), v_now + v_new.delay_ms, NULL);
        ELSIF v_makes_run THEN
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

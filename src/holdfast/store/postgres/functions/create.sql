-- Creating runs.

-- Build one holdfast_new_run for each entry of the arrays. Arrays of rarely used attributes may be NULL.
-- p_start_event_* and p_term_* hold the start events and terms of all runs; p_start_events_from/_to and
-- p_terms_from/_to hold the first and last position of each run's entries in them.
CREATE OR REPLACE FUNCTION {schema}.holdfast_build_new_runs(
    {create.parameters}
) RETURNS {schema}.holdfast_new_run[] LANGUAGE sql VOLATILE AS $$
    SELECT array_agg(ROW(
               a.ord, nextval('{schema}.holdfast_run_id'), NULL, NULL, {new_run.columns a},
               p_start_event_type[a.start_events_from:a.start_events_to],
               p_start_event_payload[a.start_events_from:a.start_events_to],
               p_term_key[a.terms_from:a.terms_to], p_term_text[a.terms_from:a.terms_to],
               p_term_number[a.terms_from:a.terms_to], a.units)::{schema}.holdfast_new_run ORDER BY a.ord)
      FROM {create.runs.numbered_rows}
$$;

-- Build a holdfast_plans_and_units; NULL if none of the runs has a plan or units.
CREATE OR REPLACE FUNCTION {schema}.holdfast_build_plans_and_units(
    {plans_and_units.parameters}
) RETURNS {schema}.holdfast_plans_and_units LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_f_run_ord IS NOT NULL OR p_u_run_ord IS NOT NULL THEN 
               ROW({plans_and_units.names})::{schema}.holdfast_plans_and_units END
$$;

-- Insert runs with their tasks, plans, units, start events, terms and watches, except those whose instance has a run
-- with that number already. Returns the ids of the inserted runs.
CREATE OR REPLACE FUNCTION {schema}.holdfast_insert_runs(
    p_now BIGINT, p_store TEXT, p_new {schema}.holdfast_new_run[], p_parts {schema}.holdfast_plans_and_units
) RETURNS BIGINT[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_inserted BIGINT[];
    v_claimable BIGINT;
    v_start_events BOOLEAN;
    v_terms BOOLEAN;
    v_children BOOLEAN;
    v_fair BOOLEAN;
BEGIN
    -- Ordered by name, so that two batches cannot deadlock.
    WITH inserted AS (
        INSERT INTO {schema}.holdfast_run (id, instance, workflow, instance_id, number, current, kind, status, params,
                                           queue, priority, seed, created_at, updated_at, made_by, parent, parent_run,
                                           parent_close, options, memo, search, version, pinned)
        SELECT a.id, coalesce(a.instance, a.id), a.workflow, a.instance_id, coalesce(a.number, 0), true, a.kind,
               CASE WHEN a.delay_ms > 0 THEN {Status.WAITING} ELSE {Status.ACTIVE} END, a.params, a.queue, a.priority,
               a.seed, p_now, p_now, a.token, a.parent, a.parent_run, a.parent_close, a.options, a.memo, a.search,
               a.version, coalesce(a.pinned, false)
          FROM unnest(p_new) AS a
         -- Retention may have deleted the first run of an instance that has later runs.
         WHERE a.number > 0 OR (SELECT true FROM {schema}.holdfast_run AS e
                                 WHERE e.workflow = a.workflow AND e.instance_id = a.instance_id
                                 ORDER BY e.workflow, e.instance_id, e.number LIMIT 1) IS NULL
         ORDER BY a.workflow COLLATE "C", a.instance_id COLLATE "C", a.ord
        ON CONFLICT (workflow, instance_id, number) DO NOTHING
        RETURNING id
    )
    SELECT array_agg(id) INTO v_inserted FROM inserted;
    IF v_inserted IS NULL THEN
        RETURN NULL;
    ELSIF cardinality(v_inserted) < cardinality(p_new) THEN
        p_new := ARRAY(SELECT a FROM unnest(p_new) AS a WHERE a.id = ANY (v_inserted));
    END IF;
    WITH tasks AS (
        INSERT INTO {schema}.holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, owner,
                                            lease_until, epoch, losses, lost, signal, topics, expires_at, expiry, bound,
                                            missing, pin, fair_key)
        SELECT a.id, 0, a.workflow, a.queue,
               CASE WHEN a.fair_key IS NULL THEN {Bucket.STARTING} ELSE {Bucket.FAIR} END, {TaskKind.RUN}, a.priority,
               CASE WHEN a.units IS NULL THEN p_now + a.delay_ms END,
               h.owner, CASE WHEN h.owner IS NOT NULL THEN p_now + a.lease_ms END,
               CASE WHEN h.owner IS NULL THEN 0 ELSE 1 END, 0, false, 0, '', p_now + a.expires_ms, a.expiry,
               a.parent_run IS NOT NULL, a.units, CASE WHEN a.pinned THEN a.version ELSE '' END, a.fair_key
          FROM unnest(p_new) AS a
         CROSS JOIN LATERAL (SELECT CASE WHEN a.units IS NULL THEN a.owner END) AS h (owner)
        RETURNING owner, run_at
    )
    SELECT count(*) FILTER (WHERE owner IS NULL AND run_at IS NOT NULL) INTO v_claimable FROM tasks;
    IF p_parts IS DISTINCT FROM NULL THEN
        v_claimable := v_claimable + {schema}.holdfast_insert_plans_and_units(p_now, p_new, p_parts);
    END IF;
    IF v_claimable > 0 THEN
        PERFORM pg_notify('{channel}', p_store);
    END IF;

    SELECT bool_or(start_event_type IS NOT NULL), bool_or(term_key IS NOT NULL), bool_or(parent_run IS NOT NULL),
           bool_or(fair_key IS NOT NULL)
      INTO v_start_events, v_terms, v_children, v_fair FROM unnest(p_new);
    IF v_fair THEN
        PERFORM {schema}.holdfast_join_fair_keys(p_new);
    END IF;
    IF v_start_events THEN
        INSERT INTO {schema}.holdfast_event (run, n, type, payload, created_at, sender)
        SELECT a.id, l.n, l.type, l.payload, p_now, a.sender
          FROM unnest(p_new) AS a
         CROSS JOIN LATERAL unnest(a.start_event_type, a.start_event_payload) WITH ORDINALITY AS l (type, payload, n);
    END IF;
    IF v_terms THEN
        INSERT INTO {schema}.holdfast_term (instance, workflow, key, text, number)
        SELECT DISTINCT coalesce(a.instance, a.id), a.workflow, t.key, t.text, t.number
          FROM unnest(p_new) AS a
         CROSS JOIN LATERAL unnest(a.term_key, a.term_text, a.term_number) AS t (key, text, number);
    END IF;
    IF v_children THEN
        PERFORM {schema}.holdfast_bind_children(p_new);
    END IF;
    RETURN v_inserted;
END $$;

-- Bind inserted children to their parents: the end of a parent affects its children, and parents may watch them.
CREATE OR REPLACE FUNCTION {schema}.holdfast_bind_children(p_new {schema}.holdfast_new_run[]) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    UPDATE {schema}.holdfast_task SET bound = true
     WHERE run = ANY (ARRAY(SELECT parent_run FROM unnest(p_new))) AND unit = 0 AND NOT bound;
    -- An undelivered exit event of an earlier run of the child's instance would be taken for the new child's.
    DELETE FROM {schema}.holdfast_event AS e USING unnest(p_new) AS a
     WHERE a.instance IS NOT NULL AND e.run = a.parent_run AND e.type = {EXIT} AND e.delivered_at IS NULL
       AND e.sender = {schema}.holdfast_pid(a.workflow, a.instance_id);
    -- A parent that watched an earlier run of the instance watches this one already.
    INSERT INTO {schema}.holdfast_watch AS w (target, watcher, kind)
    SELECT a.id, a.parent_run, a.watch FROM unnest(p_new) AS a
     WHERE a.watch <> 0
       AND (SELECT true FROM {schema}.holdfast_task AS t WHERE t.run = a.parent_run AND t.unit = 0)
    ON CONFLICT (target, watcher) DO UPDATE SET kind = w.kind | excluded.kind;
    INSERT INTO {schema}.holdfast_watch AS w (target, watcher, kind)
    SELECT a.parent_run, a.id, {Watch.LINK} FROM unnest(p_new) AS a
     WHERE a.watch & {Watch.LINK} <> 0
       AND (SELECT true FROM {schema}.holdfast_task AS t WHERE t.run = a.parent_run AND t.unit = 0)
    ON CONFLICT (target, watcher) DO UPDATE SET kind = w.kind | excluded.kind;
END $$;

-- Insert the plans and units of runs that were inserted. Returns the number of units that have a due time and no owner.
CREATE OR REPLACE FUNCTION {schema}.holdfast_insert_plans_and_units(
    p_now BIGINT, p_new {schema}.holdfast_new_run[], p_parts {schema}.holdfast_plans_and_units
) RETURNS BIGINT LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_id BIGINT[];
    v_run_at BIGINT[];
    v_owner TEXT[];
    v_lease_until BIGINT[];
    v_new_run {schema}.holdfast_new_run;
    v_claimable BIGINT;
BEGIN
    FOREACH v_new_run IN ARRAY p_new LOOP
        v_id[v_new_run.ord] := v_new_run.id;
        v_run_at[v_new_run.ord] := p_now + v_new_run.delay_ms;
        v_owner[v_new_run.ord] := v_new_run.owner;
        v_lease_until[v_new_run.ord] := p_now + v_new_run.lease_ms;
    END LOOP;
    INSERT INTO {schema}.holdfast_fact (run, {fact.columns})
    SELECT v_id[f.run_ord], {fact.columns f}
      FROM {plans_and_units.facts.rows p_parts}
     WHERE v_id[f.run_ord] IS NOT NULL;
    IF p_parts.u_run_ord IS NULL THEN
        RETURN 0;
    END IF;
    WITH tasks AS (
        INSERT INTO {schema}.holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, owner,
                                            lease_until, epoch, losses, lost, signal, topics, missing, key, pin)
        SELECT t.run, u.unit, t.workflow, t.queue, {Bucket.STARTING}, {TaskKind.RUN}, t.priority,
               CASE WHEN u.missing = 0 THEN v_run_at[u.run_ord] END,
               h.owner, CASE WHEN h.owner IS NOT NULL THEN v_lease_until[u.run_ord] END,
               CASE WHEN h.owner IS NULL THEN 0 ELSE 1 END, 0, false, 0, '', u.missing, u.key, t.pin
          FROM {plans_and_units.units.rows p_parts}
         CROSS JOIN LATERAL (
               SELECT * FROM {schema}.holdfast_task WHERE run = v_id[u.run_ord] AND unit = 0 OFFSET 0) AS t
         CROSS JOIN LATERAL (SELECT CASE WHEN u.taken THEN v_owner[u.run_ord] END) AS h (owner)
        RETURNING owner, run_at
    )
    SELECT count(*) FILTER (WHERE owner IS NULL AND run_at IS NOT NULL) INTO v_claimable FROM tasks;
    INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, ok, value, attempts)
    SELECT v_id[u.run_ord], {FactState.START}, u.key, 1, {StepType.NODE}, p_now, p_now, true,
           {schema}.holdfast_start_value(v_owner[u.run_ord], v_lease_until[u.run_ord]), 0
      FROM {plans_and_units.units.rows p_parts}
     WHERE u.taken AND v_owner[u.run_ord] IS NOT NULL AND v_id[u.run_ord] IS NOT NULL;
    RETURN v_claimable;
END $$;

-- The new runs, without an owner those of paused queues.
CREATE OR REPLACE FUNCTION {schema}.holdfast_leave_paused_unclaimed(p_new {schema}.holdfast_new_run[])
RETURNS {schema}.holdfast_new_run[] LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN array_lower(p_new, 1)..array_upper(p_new, 1) LOOP
        IF EXISTS (SELECT FROM {schema}.holdfast_queue WHERE name = p_new[i].queue AND paused) THEN
            p_new[i].owner := NULL;
        END IF;
    END LOOP;
    RETURN p_new;
END $$;

-- Create runs. claimed: the owner of the new run, if it has one, owns it. p_is_retry: an earlier attempt of this call may have been committed; its runs are found by their tokens.
CREATE OR REPLACE FUNCTION {schema}.holdfast_create(
    p_now BIGINT, p_store TEXT, p_is_retry BOOLEAN, p_new {schema}.holdfast_new_run[],
    p_parts {schema}.holdfast_plans_and_units
) RETURNS TABLE (ord BIGINT, result TEXT, run BIGINT, number BIGINT, instance BIGINT, at BIGINT, ended BIGINT[],
               woken BIGINT[], work BOOLEAN, claimed BOOLEAN)
LANGUAGE plpgsql
{planner.nested_loops} AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_inserted BIGINT[];
    v_affected {schema}.holdfast_affected;
    v_new_run {schema}.holdfast_new_run;
BEGIN
    IF EXISTS (SELECT FROM {schema}.holdfast_queue WHERE paused) THEN
        p_new := {schema}.holdfast_leave_paused_unclaimed(p_new);
    END IF;
    v_inserted := {schema}.holdfast_insert_runs(v_now, p_store, p_new, p_parts);
    RETURN QUERY
        SELECT a.ord, {RequestResult.DONE}, a.id, 0::bigint, a.id, v_now, NULL::bigint[], NULL::bigint[], false,
               a.owner IS NOT NULL
          FROM unnest(p_new) AS a WHERE cardinality(v_inserted) = cardinality(p_new) OR a.id = ANY (v_inserted);
    IF cardinality(v_inserted) = cardinality(p_new) THEN
        RETURN;
    END IF;
    PERFORM 1 FROM {schema}.holdfast_task AS t
      WHERE t.run = ANY (ARRAY(SELECT {schema}.holdfast_current_run(a.workflow, a.instance_id)
                                 FROM unnest(p_new) AS a WHERE (a.id = ANY (v_inserted)) IS NOT TRUE))
        AND t.unit = 0
      ORDER BY t.run FOR NO KEY UPDATE;
    FOR v_new_run IN SELECT * FROM unnest(p_new) AS a WHERE (a.id = ANY (v_inserted)) IS NOT TRUE ORDER BY a.ord LOOP
        RETURN QUERY
            SELECT v_new_run.ord, x.*, v_new_run.owner IS NOT NULL
              FROM {schema}.holdfast_resolve_conflict(v_now, p_store, p_is_retry, v_new_run, p_parts) AS x;
    END LOOP;
END $$;

-- Create one run with default options and without plan, units, start events or parent: the most common call. Returns
-- the run's id and the time as one text, which is faster than a row, and a third word if the queue is paused and the
-- run therefore has no owner; NULL if the instance exists already.
CREATE OR REPLACE FUNCTION {schema}.holdfast_create_one(
    p_now BIGINT, p_store TEXT, {create_one.parameters}
) RETURNS TEXT LANGUAGE plpgsql AS $$
DECLARE
    v_at BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT := nextval('{schema}.holdfast_run_id');
    v_paused BOOLEAN := false;
BEGIN
    IF p_owner IS NOT NULL AND EXISTS (SELECT FROM {schema}.holdfast_queue WHERE name = p_queue AND paused) THEN
        p_owner := NULL;
        v_paused := true;
    END IF;
    INSERT INTO {schema}.holdfast_run (id, instance, workflow, instance_id, number, current, kind, status, params,
                                       queue, priority, seed, created_at, updated_at, made_by, version, pinned)
    SELECT v_run, v_run, p_workflow, p_instance_id, 0, true, p_kind,
           CASE WHEN p_delay_ms > 0 THEN {Status.WAITING} ELSE {Status.ACTIVE} END, p_params, p_queue, p_priority,
           p_seed, v_at, v_at, p_token, p_version, coalesce(p_pinned, false)
     WHERE (SELECT true FROM {schema}.holdfast_run AS e WHERE e.workflow = p_workflow AND e.instance_id = p_instance_id
             ORDER BY e.workflow, e.instance_id, e.number LIMIT 1) IS NULL
    ON CONFLICT (workflow, instance_id, number) DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO {schema}.holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, owner, lease_until,
                                        epoch, losses, lost, signal, topics, pin)
    VALUES (v_run, 0, p_workflow, p_queue, {Bucket.STARTING}, {TaskKind.RUN}, p_priority, v_at + p_delay_ms, p_owner,
            CASE WHEN p_owner IS NOT NULL THEN v_at + p_lease_ms END, CASE WHEN p_owner IS NULL THEN 0 ELSE 1 END, 0,
            false, 0, '', CASE WHEN p_pinned THEN p_version ELSE '' END);
    IF p_owner IS NULL THEN
        PERFORM pg_notify('{channel}', p_store);
    END IF;
    RETURN v_run || ' ' || v_at || CASE WHEN v_paused THEN ' paused' ELSE '' END;
END $$;

-- Apply the policies (on_conflict, on_reuse) of a new run whose instance exists already.
CREATE OR REPLACE FUNCTION {schema}.holdfast_resolve_conflict(
    p_now BIGINT, p_store TEXT, p_is_retry BOOLEAN, p_new {schema}.holdfast_new_run,
    p_parts {schema}.holdfast_plans_and_units,
    OUT result TEXT, OUT run BIGINT, OUT number BIGINT, OUT instance BIGINT, OUT at BIGINT, OUT ended BIGINT[],
    OUT woken BIGINT[], OUT work BOOLEAN
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_old {schema}.holdfast_record;
    v_effect INTEGER;
    v_affected {schema}.holdfast_affected;
    v_policy TEXT;
BEGIN
    IF p_is_retry THEN
        SELECT {RequestResult.DONE}, r.id, r.number, r.instance, r.created_at INTO result, run, number, instance, at
          FROM {schema}.holdfast_run AS r
         WHERE r.workflow = p_new.workflow AND r.instance_id = p_new.instance_id AND r.made_by = p_new.token;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    IF p_new.on_conflict = {OnConflict.TERMINATE_EXISTING} THEN
        run := {schema}.holdfast_lock_for_end(p_new.workflow, p_new.instance_id);
    ELSE
        run := {schema}.holdfast_lock_current_run(p_new.workflow, p_new.instance_id);
    END IF;
    WHILE run IS NULL LOOP  -- the instance was deleted meanwhile (holdfast_prune)
        IF {schema}.holdfast_insert_runs(p_now, p_store, ARRAY[p_new], p_parts) IS NOT NULL THEN
            SELECT {RequestResult.DONE}, p_new.id, 0, p_new.id, p_now INTO result, run, number, instance, at;
            RETURN;
        END IF;
        run := {schema}.holdfast_lock_current_run(p_new.workflow, p_new.instance_id);
    END LOOP;
    SELECT * INTO v_old FROM {schema}.holdfast_record AS r WHERE r.run = holdfast_resolve_conflict.run;
    v_policy := coalesce(CASE WHEN v_old.epoch IS NULL THEN p_new.on_reuse ELSE p_new.on_conflict END,
                         {OnConflict.USE_EXISTING});
    IF v_policy = {OnReuse.RETRY_IF_FAILED}
       OR (v_policy = {OnReuse.ALLOW} AND p_now < v_old.created_at + p_new.reuse_after_ms) THEN
        v_policy := {OnReuse.USE_EXISTING};
    END IF;
    IF v_policy IN ({OnConflict.FAIL}, {OnReuse.REJECT})
       OR (v_policy = {OnReuse.ALLOW_IF_FAILED} AND v_old.status = {Status.COMPLETE}) THEN
        result := {RequestResult.EXISTS};
    ELSIF v_policy = {OnConflict.USE_EXISTING} AND v_old.epoch IS NULL THEN
        result := CASE WHEN p_new.start_event_type IS NULL THEN {RequestResult.EXISTING} ELSE {RequestResult.ENDED} END;
    ELSIF v_policy = {OnConflict.USE_EXISTING} THEN
        result := {RequestResult.EXISTING};
        FOR i IN 1..coalesce(cardinality(p_new.start_event_type), 0) LOOP
            v_effect := {schema}.holdfast_add_event(
                p_now, v_old, p_new.start_event_type[i], p_new.start_event_payload[i], p_new.sender, NULL,
                '\xff'::bytea || int8send(p_new.token) || int4send(i), p_new.token);
            IF v_effect >= {AddedEvent.SIGNALLED} THEN
                woken := ARRAY[v_old.run];
                work := coalesce(work, false) OR v_effect = {AddedEvent.DUE};
                PERFORM pg_notify('{channel}', p_store);
            END IF;
            -- Read again: the event may have made the run due.
            SELECT * INTO v_old FROM {schema}.holdfast_record AS r WHERE r.run = v_old.run;
        END LOOP;
    ELSE
        result := {RequestResult.DONE};
        run := p_new.id;
        number := v_old.number + 1;
        instance := v_old.instance;
        at := p_now;
        p_new.number := number;
        p_new.instance := instance;
        UPDATE {schema}.holdfast_run SET current = false WHERE id = v_old.run;
        DELETE FROM {schema}.holdfast_term AS t WHERE t.instance = v_old.instance;
        PERFORM {schema}.holdfast_insert_runs(p_now, p_store, ARRAY[p_new], p_parts);
        IF v_old.epoch IS NOT NULL THEN
            v_affected := {schema}.holdfast_end_run(p_now, p_store, v_old.run, {Status.TERMINATED}, NULL, NULL,
                                               'terminated: another run was started with the same id'::bytea, p_new.id,
                                               false);
            ended := v_old.run || v_affected.ended;
            woken := v_affected.woken;
            work := v_affected.work;
        END IF;
    END IF;
END $$;

-- Making runs.

-- Takes arrays apart, one entry for each run. Those of what runs seldom have may be NULL; p_letter_* and p_term_* are
-- all letters and terms, p_letters_* and p_terms_* where those of each run are among them, from the first to the last.
CREATE FUNCTION {schema}.holdfast_news(
    p_token BIGINT[], p_workflow TEXT[], p_instance_id TEXT[], p_kind TEXT[], p_params BYTEA[], p_queue TEXT[],
    p_priority BIGINT[], p_delay_ms BIGINT[], p_seed BIGINT[], p_owner TEXT[], p_lease_ms BIGINT[],
    p_on_conflict TEXT[], p_on_reuse TEXT[], p_options BYTEA[], p_memo BYTEA[], p_search BYTEA[], p_expires_ms BIGINT[],
    p_expiry TEXT[], p_parent TEXT[], p_parent_run BIGINT[], p_parent_close TEXT[], p_watch INTEGER[], p_sender BYTEA[],
    p_letters_from INTEGER[], p_letters_to INTEGER[], p_terms_from INTEGER[], p_terms_to INTEGER[],
    p_units BIGINT[], p_letter_type TEXT[], p_letter_payload BYTEA[], p_term_key BYTEA[], p_term_text BYTEA[],
    p_term_number NUMERIC[]
) RETURNS {schema}.holdfast_new[] LANGUAGE sql VOLATILE AS $$
    SELECT array_agg(ROW(
               a.ord, nextval('{schema}.holdfast_run_id'), NULL, NULL, a.token, a.workflow, a.instance_id, a.kind,
               a.params, a.queue, a.priority, a.delay_ms, a.seed, a.owner, a.lease_ms, a.on_conflict, a.on_reuse,
               a.options, a.memo, a.search, a.expires_ms, a.expiry, a.parent, a.parent_run, a.parent_close, a.watch,
               a.sender, p_letter_type[a.l1:a.l2], p_letter_payload[a.l1:a.l2], p_term_key[a.t1:a.t2],
               p_term_text[a.t1:a.t2], p_term_number[a.t1:a.t2], a.units)::{schema}.holdfast_new ORDER BY a.ord)
      FROM unnest(p_token, p_workflow, p_instance_id, p_kind, p_params, p_queue, p_priority, p_delay_ms, p_seed,
                  p_owner, p_lease_ms, p_on_conflict, p_on_reuse, p_options, p_memo, p_search, p_expires_ms, p_expiry,
                  p_parent, p_parent_run, p_parent_close, p_watch, p_sender, p_letters_from, p_letters_to,
                  p_terms_from, p_terms_to, p_units)
           WITH ORDINALITY AS a (token, workflow, instance_id, kind, params, queue, priority, delay_ms, seed, owner,
                                 lease_ms, on_conflict, on_reuse, options, memo, search, expires_ms, expiry, parent,
                                 parent_run, parent_close, watch, sender, l1, l2, t1, t2, units, ord)
$$;

-- NULL where no run has any.
CREATE FUNCTION {schema}.holdfast_parts_of(
    p_f_of INTEGER[], p_f_state INTEGER[], p_f_key BYTEA[], p_f_n BIGINT[], p_f_kind TEXT[], p_f_at BIGINT[],
    p_f_started_at BIGINT[], p_f_seq BIGINT[], p_f_ok BOOLEAN[], p_f_value BYTEA[], p_f_name BYTEA[],
    p_f_attempts BIGINT[], p_f_max_attempts BIGINT[], p_f_timeout_ms BIGINT[], p_f_wake_at BIGINT[],
    p_f_event_type TEXT[], p_f_event BIGINT[],
    p_u_of INTEGER[], p_u_unit BIGINT[], p_u_key BYTEA[], p_u_missing BIGINT[], p_u_taken BOOLEAN[]
) RETURNS {schema}.holdfast_parts LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_f_of IS NOT NULL OR p_u_of IS NOT NULL THEN ROW(
        p_f_of, p_f_state, p_f_key, p_f_n, p_f_kind, p_f_at, p_f_started_at, p_f_seq, p_f_ok, p_f_value, p_f_name,
        p_f_attempts, p_f_max_attempts, p_f_timeout_ms, p_f_wake_at, p_f_event_type, p_f_event, p_u_of, p_u_unit,
        p_u_key, p_u_missing, p_u_taken)::{schema}.holdfast_parts END
$$;

-- Inserts runs with all that they come with, those whose instance has no such number yet. Answers their ids.
CREATE FUNCTION {schema}.holdfast_insert(
    p_now BIGINT, p_by TEXT, p_new {schema}.holdfast_new[], p_parts {schema}.holdfast_parts
) RETURNS BIGINT[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_made BIGINT[];
    v_free BIGINT;
    v_letters BOOLEAN;
    v_terms BOOLEAN;
    v_children BOOLEAN;
BEGIN
    -- In the order of their names, so that two batches do not wait for each other.
    WITH made AS (
        INSERT INTO {schema}.holdfast_run (id, instance, workflow, instance_id, number, current, kind, status, params,
                                           queue, priority, seed, created_at, updated_at, made_by, parent, parent_run,
                                           parent_close, options, memo, search)
        SELECT a.id, coalesce(a.instance, a.id), a.workflow, a.instance_id, coalesce(a.number, 0), true, a.kind,
               CASE WHEN a.delay_ms > 0 THEN 'waiting' ELSE 'active' END, a.params, a.queue, a.priority, a.seed, p_now,
               p_now, a.token, a.parent, a.parent_run, a.parent_close, a.options, a.memo, a.search
          FROM unnest(p_new) AS a ORDER BY a.workflow COLLATE "C", a.instance_id COLLATE "C", a.ord
        ON CONFLICT (workflow, instance_id, number) DO NOTHING
        RETURNING id
    )
    SELECT array_agg(id) INTO v_made FROM made;
    IF v_made IS NULL THEN
        RETURN NULL;
    ELSIF cardinality(v_made) < cardinality(p_new) THEN
        p_new := ARRAY(SELECT a FROM unnest(p_new) AS a WHERE a.id = ANY (v_made));
    END IF;
    WITH tasks AS (
        INSERT INTO {schema}.holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, owner,
                                            lease_until, epoch, losses, lost, signal, topics, expires_at, expiry, bound,
                                            missing)
        SELECT a.id, 0, a.workflow, a.queue, 1, 3, a.priority, CASE WHEN a.units IS NULL THEN p_now + a.delay_ms END,
               h.owner, CASE WHEN h.owner IS NOT NULL THEN p_now + a.lease_ms END,
               CASE WHEN h.owner IS NULL THEN 0 ELSE 1 END, 0, false, 0, '', p_now + a.expires_ms, a.expiry,
               a.parent_run IS NOT NULL, a.units
          FROM unnest(p_new) AS a
         CROSS JOIN LATERAL (SELECT CASE WHEN a.units IS NULL THEN a.owner END) AS h (owner)
        RETURNING owner, run_at
    )
    SELECT count(*) FILTER (WHERE owner IS NULL AND run_at IS NOT NULL) INTO v_free FROM tasks;
    IF p_parts IS DISTINCT FROM NULL THEN
        v_free := v_free + {schema}.holdfast_insert_parts(p_now, p_new, p_parts);
    END IF;
    IF v_free > 0 THEN
        PERFORM pg_notify('{channel}', p_by);
    END IF;

    SELECT bool_or(letter_type IS NOT NULL), bool_or(term_key IS NOT NULL), bool_or(parent_run IS NOT NULL)
      INTO v_letters, v_terms, v_children FROM unnest(p_new);
    IF v_letters THEN
        INSERT INTO {schema}.holdfast_event (run, n, type, payload, created_at, sender)
        SELECT a.id, l.n, l.type, l.payload, p_now, a.sender
          FROM unnest(p_new) AS a
         CROSS JOIN LATERAL unnest(a.letter_type, a.letter_payload) WITH ORDINALITY AS l (type, payload, n);
    END IF;
    IF v_terms THEN
        INSERT INTO {schema}.holdfast_term (instance, workflow, key, text, number)
        SELECT DISTINCT coalesce(a.instance, a.id), a.workflow, t.key, t.text, t.number
          FROM unnest(p_new) AS a
         CROSS JOIN LATERAL unnest(a.term_key, a.term_text, a.term_number) AS t (key, text, number);
    END IF;
    IF v_children THEN
        UPDATE {schema}.holdfast_task SET bound = true
         WHERE run = ANY (ARRAY(SELECT parent_run FROM unnest(p_new))) AND unit = 0 AND NOT bound;
        -- News of an earlier one's end, not read yet, would be taken for its own.
        DELETE FROM {schema}.holdfast_event AS e USING unnest(p_new) AS a
         WHERE a.instance IS NOT NULL AND e.run = a.parent_run AND e.type = '@exit' AND e.delivered_at IS NULL
           AND e.sender = {schema}.holdfast_pid(a.workflow, a.instance_id);
        -- Who watched one that had the id before watches this one already.
        INSERT INTO {schema}.holdfast_watch AS w (target, watcher, kind)
        SELECT a.id, a.parent_run, a.watch FROM unnest(p_new) AS a
         WHERE a.watch <> 0
           AND (SELECT true FROM {schema}.holdfast_task AS t WHERE t.run = a.parent_run AND t.unit = 0)
        ON CONFLICT (target, watcher) DO UPDATE SET kind = w.kind | excluded.kind;
        INSERT INTO {schema}.holdfast_watch AS w (target, watcher, kind)
        SELECT a.parent_run, a.id, 2 FROM unnest(p_new) AS a
         WHERE a.watch & 2 <> 0
           AND (SELECT true FROM {schema}.holdfast_task AS t WHERE t.run = a.parent_run AND t.unit = 0)
        ON CONFLICT (target, watcher) DO UPDATE SET kind = w.kind | excluded.kind;
    END IF;
    RETURN v_made;
END $$;

-- The plans and units of runs that were made. Answers how many units can be claimed, now or later.
CREATE FUNCTION {schema}.holdfast_insert_parts(
    p_now BIGINT, p_new {schema}.holdfast_new[], p_parts {schema}.holdfast_parts
) RETURNS BIGINT LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_id BIGINT[];
    v_run_at BIGINT[];
    v_owner TEXT[];
    v_lease BIGINT[];
    v_one {schema}.holdfast_new;
    v_free BIGINT;
BEGIN
    FOREACH v_one IN ARRAY p_new LOOP
        v_id[v_one.ord] := v_one.id;
        v_run_at[v_one.ord] := p_now + v_one.delay_ms;
        v_owner[v_one.ord] := v_one.owner;
        v_lease[v_one.ord] := p_now + v_one.lease_ms;
    END LOOP;
    INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, value, name, attempts,
                                        max_attempts, timeout_ms, wake_at, event_type, event)
    SELECT v_id[f.o], f.state, f.key, f.n, f.kind, f.at, f.started_at, f.seq, f.ok, f.value, f.name, f.attempts,
           f.max_attempts, f.timeout_ms, f.wake_at, f.event_type, f.event
      FROM unnest(p_parts.f_of, p_parts.f_state, p_parts.f_key, p_parts.f_n, p_parts.f_kind, p_parts.f_at,
                  p_parts.f_started_at, p_parts.f_seq, p_parts.f_ok, p_parts.f_value, p_parts.f_name,
                  p_parts.f_attempts, p_parts.f_max_attempts, p_parts.f_timeout_ms, p_parts.f_wake_at,
                  p_parts.f_event_type, p_parts.f_event)
           AS f (o, state, key, n, kind, at, started_at, seq, ok, value, name, attempts, max_attempts, timeout_ms,
                 wake_at, event_type, event)
     WHERE v_id[f.o] IS NOT NULL;
    IF p_parts.u_of IS NULL THEN
        RETURN 0;
    END IF;
    WITH tasks AS (
        INSERT INTO {schema}.holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, owner,
                                            lease_until, epoch, losses, lost, signal, topics, missing, key)
        SELECT t.run, u.unit, t.workflow, t.queue, 1, 3, t.priority, CASE WHEN u.missing = 0 THEN v_run_at[u.o] END,
               CASE WHEN u.taken THEN v_owner[u.o] END, CASE WHEN u.taken THEN v_lease[u.o] END,
               CASE WHEN u.taken THEN 1 ELSE 0 END, 0, false, 0, '', u.missing, u.key
          FROM unnest(p_parts.u_of, p_parts.u_unit, p_parts.u_key, p_parts.u_missing, p_parts.u_taken)
               AS u (o, unit, key, missing, taken)
         CROSS JOIN LATERAL (SELECT * FROM {schema}.holdfast_task WHERE run = v_id[u.o] AND unit = 0 OFFSET 0) AS t
        RETURNING owner, run_at
    )
    SELECT count(*) FILTER (WHERE owner IS NULL AND run_at IS NOT NULL) INTO v_free FROM tasks;
    INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, ok, value, attempts)
    SELECT v_id[u.o], 1, u.key, 1, 'node', p_now, p_now, true,
           {schema}.holdfast_holder(v_owner[u.o], v_lease[u.o]), 0
      FROM unnest(p_parts.u_of, p_parts.u_key, p_parts.u_taken) AS u (o, key, taken)
     WHERE u.taken AND v_id[u.o] IS NOT NULL;
    RETURN v_free;
END $$;

-- p_again: an earlier try of this call may have been done; its tokens tell.
CREATE FUNCTION {schema}.holdfast_create(
    p_now BIGINT, p_by TEXT, p_again BOOLEAN, p_new {schema}.holdfast_new[], p_parts {schema}.holdfast_parts
) RETURNS TABLE (ord BIGINT, answer TEXT, run BIGINT, number BIGINT, instance BIGINT, at BIGINT, ended BIGINT[],
               woken BIGINT[], work BOOLEAN)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_made BIGINT[] := {schema}.holdfast_insert(v_now, p_by, p_new, p_parts);
    v_touched {schema}.holdfast_touched;
    v_one {schema}.holdfast_new;
BEGIN
    RETURN QUERY
        SELECT a.ord, 'done', a.id, 0::bigint, a.id, v_now, NULL::bigint[], NULL::bigint[], false
          FROM unnest(p_new) AS a WHERE cardinality(v_made) = cardinality(p_new) OR a.id = ANY (v_made);
    IF cardinality(v_made) = cardinality(p_new) THEN
        RETURN;
    END IF;
    PERFORM 1 FROM {schema}.holdfast_task AS t
      WHERE t.run = ANY (ARRAY(SELECT {schema}.holdfast_current(a.workflow, a.instance_id)
                                 FROM unnest(p_new) AS a WHERE (a.id = ANY (v_made)) IS NOT TRUE))
        AND t.unit = 0
      ORDER BY t.run FOR NO KEY UPDATE;
    FOR v_one IN SELECT * FROM unnest(p_new) AS a WHERE (a.id = ANY (v_made)) IS NOT TRUE ORDER BY a.ord LOOP
        RETURN QUERY SELECT v_one.ord, x.* FROM {schema}.holdfast_reuse(v_now, p_by, p_again, v_one, p_parts) AS x;
    END LOOP;
END $$;

-- The same for one run that comes with nothing else, which is what most are. Its number and the time, in one text,
-- which takes less than a row does; NULL if its id is taken.
CREATE FUNCTION {schema}.holdfast_create_one(
    p_now BIGINT, p_by TEXT, p_token BIGINT, p_workflow TEXT, p_instance_id TEXT, p_kind TEXT, p_params BYTEA,
    p_queue TEXT, p_priority BIGINT, p_delay_ms BIGINT, p_seed BIGINT, p_owner TEXT, p_lease_ms BIGINT, p_quiet BOOLEAN
) RETURNS TEXT LANGUAGE plpgsql AS $$
DECLARE
    v_at BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT := nextval('{schema}.holdfast_run_id');
BEGIN
    INSERT INTO {schema}.holdfast_run (id, instance, workflow, instance_id, number, current, kind, status, params,
                                       queue, priority, seed, created_at, updated_at, made_by)
    VALUES (v_run, v_run, p_workflow, p_instance_id, 0, true, p_kind,
            CASE WHEN p_delay_ms > 0 THEN 'waiting' ELSE 'active' END, p_params, p_queue, p_priority, p_seed, v_at,
            v_at, p_token)
    ON CONFLICT (workflow, instance_id, number) DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO {schema}.holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, owner, lease_until,
                                        epoch, losses, lost, signal, topics)
    VALUES (v_run, 0, p_workflow, p_queue, 1, 3, p_priority, v_at + p_delay_ms, p_owner,
            CASE WHEN p_owner IS NOT NULL THEN v_at + p_lease_ms END, CASE WHEN p_owner IS NULL THEN 0 ELSE 1 END, 0,
            false, 0, '');
    IF p_owner IS NULL AND NOT p_quiet THEN
        PERFORM pg_notify('{channel}', p_by);
    END IF;
    RETURN v_run || ' ' || v_at;
END $$;

-- A run whose id is taken already: what becomes of it is for its policies to say.
CREATE FUNCTION {schema}.holdfast_reuse(
    p_now BIGINT, p_by TEXT, p_again BOOLEAN, p_new {schema}.holdfast_new, p_parts {schema}.holdfast_parts,
    OUT answer TEXT, OUT run BIGINT, OUT number BIGINT, OUT instance BIGINT, OUT at BIGINT, OUT ended BIGINT[],
    OUT woken BIGINT[], OUT work BOOLEAN
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_old {schema}.holdfast_record;
    v_effect INTEGER;
    v_touched {schema}.holdfast_touched;
    v_policy TEXT;
BEGIN
    IF p_again THEN
        SELECT 'done', r.id, r.number, r.instance, r.created_at INTO answer, run, number, instance, at
          FROM {schema}.holdfast_run AS r
         WHERE r.workflow = p_new.workflow AND r.instance_id = p_new.instance_id AND r.made_by = p_new.token;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    IF p_new.on_conflict = 'terminate_existing' THEN
        run := {schema}.holdfast_lock_to_end(p_new.workflow, p_new.instance_id);
    ELSE
        run := {schema}.holdfast_lock(p_new.workflow, p_new.instance_id);
    END IF;
    SELECT * INTO v_old FROM {schema}.holdfast_record AS r WHERE r.run = holdfast_reuse.run;
    v_policy := coalesce(CASE WHEN v_old.epoch IS NULL THEN p_new.on_reuse ELSE p_new.on_conflict END, 'use_existing');
    IF v_policy IN ('fail', 'reject') OR (v_policy = 'allow_if_failed' AND v_old.status = 'complete') THEN
        answer := 'exists';
    ELSIF v_policy = 'use_existing' AND v_old.epoch IS NULL THEN
        answer := CASE WHEN p_new.letter_type IS NULL THEN 'existing' ELSE 'ended' END;
    ELSIF v_policy = 'use_existing' THEN
        answer := 'existing';
        FOR i IN 1..coalesce(cardinality(p_new.letter_type), 0) LOOP
            v_effect := {schema}.holdfast_put(
                p_now, v_old, p_new.letter_type[i], p_new.letter_payload[i], p_new.sender, NULL,
                '\xff'::bytea || int8send(p_new.token) || int4send(i), p_new.token);
            IF v_effect > 1 THEN
                woken := ARRAY[v_old.run];
                work := coalesce(work, false) OR v_effect = 3;
                PERFORM pg_notify('{channel}', p_by);
            END IF;
            SELECT * INTO v_old FROM {schema}.holdfast_record AS r WHERE r.run = v_old.run;  -- it may be due by now
        END LOOP;
    ELSE
        answer := 'done';
        run := p_new.id;
        number := v_old.number + 1;
        instance := v_old.instance;
        at := p_now;
        p_new.number := number;
        p_new.instance := instance;
        UPDATE {schema}.holdfast_run SET current = false WHERE id = v_old.run;
        DELETE FROM {schema}.holdfast_term AS t WHERE t.instance = v_old.instance;
        PERFORM {schema}.holdfast_insert(p_now, p_by, ARRAY[p_new], p_parts);
        IF v_old.epoch IS NOT NULL THEN
            v_touched := {schema}.holdfast_end(p_now, p_by, v_old.run, 'terminated', NULL, NULL,
                                               'terminated: another run was started with its id'::bytea, p_new.id,
                                               false);
            ended := v_old.run || v_touched.ended;
            woken := v_touched.woken;
            work := v_touched.work;
        END IF;
    END IF;
END $$;

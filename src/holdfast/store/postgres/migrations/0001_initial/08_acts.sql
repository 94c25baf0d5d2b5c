-- What a run does to others, in the transaction of its own commit.

CREATE FUNCTION {schema}.holdfast_deeds(
    p_what TEXT[], p_workflow TEXT[], p_instance_id TEXT[], p_type TEXT[], p_payload BYTEA[], p_sender BYTEA[],
    p_dedup BYTEA[], p_ask BYTEA[], p_token BIGINT[], p_number BIGINT[], p_note BYTEA[], p_ok BOOLEAN[]
) RETURNS {schema}.holdfast_deed[] LANGUAGE sql STABLE AS $$
    SELECT array_agg(ROW(a.what, a.workflow, a.instance_id, a.type, a.payload, a.sender, a.dedup, a.ask, a.token,
                         a.number, a.note, a.ok)::{schema}.holdfast_deed ORDER BY a.ord)
      FROM unnest(p_what, p_workflow, p_instance_id, p_type, p_payload, p_sender, p_dedup, p_ask, p_token, p_number,
                  p_note, p_ok)
           WITH ORDINALITY AS a (what, workflow, instance_id, type, payload, sender, dedup, ask, token, number, note,
                                 ok, ord)
$$;

-- Before a commit that reaches other runs: the time, with the tasks of all of them and its own locked in one go.
CREATE FUNCTION {schema}.holdfast_reach(
    p_now BIGINT, p_run BIGINT, p_ends BOOLEAN, p_deeds {schema}.holdfast_deed[], p_new {schema}.holdfast_new[]
) RETURNS BIGINT LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_ending BIGINT[];
    v_others BIGINT[];
BEGIN
    SELECT array_agg(run) FILTER (WHERE what IN ('terminate', 'cancel')), array_agg(run)
      INTO v_ending, v_others
      FROM (SELECT d.what, CASE d.what
                WHEN 'answer' THEN {schema}.holdfast_run_of(
                    (SELECT e.sender FROM {schema}.holdfast_event AS e WHERE e.run = p_run AND e.n = d.number))
                ELSE {schema}.holdfast_current(d.workflow, d.instance_id) END AS run
              FROM unnest(p_deeds) AS d WHERE d.what <> 'start'
            UNION ALL
            SELECT CASE WHEN n.on_conflict = 'terminate_existing' THEN 'terminate' END,
                   {schema}.holdfast_current(n.workflow, n.instance_id)
              FROM unnest(p_new) AS n) AS x
     WHERE run IS NOT NULL;
    IF p_ends AND EXISTS (SELECT FROM {schema}.holdfast_task WHERE run = p_run AND unit = 0 AND bound) THEN
        v_ending := v_ending || p_run;
    END IF;
    IF v_others IS NOT NULL OR v_ending IS NOT NULL THEN
        PERFORM {schema}.holdfast_lock_family(v_ending, v_others || p_run);
    END IF;
    RETURN v_now;
END $$;

-- What follows a commit that holdfast_commit has written (p_state: what became of it, p_more: what was answered to it
-- the first time): attributes, acts with their facts, and the end. Answers, as JSON, what came of it.
CREATE FUNCTION {schema}.holdfast_follow(
    p_state INTEGER, p_more TEXT, p_now BIGINT, p_by TEXT, p_line INTEGER, p_run BIGINT,
    p_deeds {schema}.holdfast_deed[], p_new {schema}.holdfast_new[], p_parts {schema}.holdfast_parts,
    p_f_state INTEGER[], p_f_key BYTEA[], p_f_n BIGINT[], p_f_kind TEXT[], p_f_at BIGINT[], p_f_started_at BIGINT[],
    p_f_seq BIGINT[], p_f_name BYTEA[], p_f_attempts BIGINT[], p_f_max_attempts BIGINT[], p_f_timeout_ms BIGINT[],
    p_f_wake_at BIGINT[], p_f_event_type TEXT[], p_f_event BIGINT[],
    p_memo BYTEA, p_search BYTEA, p_term_key BYTEA[], p_term_text BYTEA[], p_term_number NUMERIC[],
    p_status TEXT, p_output BYTEA, p_error BYTEA, p_note BYTEA, p_next BOOLEAN, p_params BYTEA, p_run_at BIGINT,
    p_attempt BIGINT, p_expires_ms BIGINT, p_expiry TEXT, p_continues BOOLEAN, p_options BYTEA, p_token BIGINT,
    p_unit BIGINT[], p_unit_key BYTEA[], p_unit_missing BIGINT[]
) RETURNS TEXT LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_own {schema}.holdfast_record;
    v_touched {schema}.holdfast_touched;
    v_acted TEXT[] := '{}';
    v_born TEXT[];
    v_first INTEGER := 1;
    v_last INTEGER;
    v_some RECORD;
    v_more TEXT;
BEGIN
    IF p_more IS NOT NULL OR p_state < 3 THEN
        RETURN p_more;
    END IF;
    SELECT * INTO v_own FROM {schema}.holdfast_record WHERE run = p_run;
    IF p_memo IS NOT NULL OR p_search IS NOT NULL THEN
        UPDATE {schema}.holdfast_run
           SET memo = coalesce(p_memo, memo), search = coalesce(p_search, search), updated_at = p_now
         WHERE id = p_run;
    END IF;
    IF p_search IS NOT NULL THEN
        DELETE FROM {schema}.holdfast_term WHERE instance = v_own.instance;
        INSERT INTO {schema}.holdfast_term (instance, workflow, key, text, number)
        SELECT DISTINCT v_own.instance, v_own.workflow, t.key, t.text, t.number
          FROM unnest(p_term_key, p_term_text, p_term_number) AS t (key, text, number);
    END IF;

    WHILE v_first <= coalesce(cardinality(p_deeds), 0) LOOP
        v_last := v_first;
        IF p_run = ANY (v_touched.ended) THEN  -- by an act before this one
            v_acted := v_acted || 'ended'::text;
        ELSIF p_deeds[v_first].what = 'start' THEN  -- neighbours are made together
            WHILE p_deeds[v_last + 1].what = 'start' LOOP
                v_last := v_last + 1;
            END LOOP;
            FOR v_some IN
                SELECT * FROM {schema}.holdfast_create(
                    p_now, p_by, false, p_new[p_deeds[v_first].number:p_deeds[v_last].number], p_parts)
            LOOP
                v_acted[v_first + v_some.ord - p_deeds[v_first].number] := v_some.answer;
                IF v_some.answer = 'done' AND p_new[v_some.ord].owner IS NOT NULL THEN
                    v_born := v_born || jsonb_build_array(
                        v_first + v_some.ord - p_deeds[v_first].number, v_some.run, v_some.number,
                        v_some.instance)::text;
                    v_some.work := v_some.work OR (p_new[v_some.ord].units > 0 AND EXISTS (
                        SELECT FROM {schema}.holdfast_task
                         WHERE run = v_some.run AND unit > 0 AND owner IS NULL AND run_at IS NOT NULL));
                ELSIF v_some.answer = 'done' THEN
                    v_some.work := v_some.work OR p_new[v_some.ord].delay_ms <= 0;
                END IF;
                v_touched.ended := v_touched.ended || v_some.ended;
                v_touched.woken := v_touched.woken || v_some.woken;
                v_touched.work := coalesce(v_touched.work, false) OR coalesce(v_some.work, false);
            END LOOP;
        ELSE
            SELECT d.* INTO v_some FROM {schema}.holdfast_act(p_now, p_by, v_own, p_deeds[v_first]) AS d;
            v_acted := v_acted || v_some.answer;
            v_touched := {schema}.holdfast_and(v_touched, v_some.touched);
        END IF;
        v_first := v_last + 1;
    END LOOP;
    INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, value, name, attempts,
                                        max_attempts, timeout_ms, wake_at, event_type, event)
    SELECT p_run, f.state, f.key, f.n, f.kind, f.at, f.started_at, f.seq, f.answer IN ('done', 'existing'),
           convert_to('"' || f.answer || '"', 'UTF8'), f.name, f.attempts, f.max_attempts, f.timeout_ms, f.wake_at,
           f.event_type, f.event
      FROM unnest(v_acted, p_f_state, p_f_key, p_f_n, p_f_kind, p_f_at, p_f_started_at, p_f_seq, p_f_name, p_f_attempts,
                  p_f_max_attempts, p_f_timeout_ms, p_f_wake_at, p_f_event_type, p_f_event)
           AS f (answer, state, key, n, kind, at, started_at, seq, name, attempts, max_attempts, timeout_ms, wake_at,
                 event_type, event);

    -- Unless an act has ended it.
    IF p_status IS NOT NULL AND EXISTS (SELECT FROM {schema}.holdfast_task WHERE run = p_run AND unit = 0) THEN
        v_touched := {schema}.holdfast_and(v_touched, CASE
            WHEN p_next THEN {schema}.holdfast_succeed(
                p_now, p_by, p_run, p_status, p_output, p_error, p_note, p_token, p_params, p_run_at, p_attempt,
                p_expires_ms, p_expiry, p_continues, p_options, p_unit, p_unit_key, p_unit_missing)
            ELSE {schema}.holdfast_end(p_now, p_by, p_run, p_status, p_output, p_error, p_note, NULL, false) END);
    END IF;
    -- What it did to itself it is told at once.
    UPDATE {schema}.holdfast_task SET signal = signal & ~1 WHERE run = p_run AND unit = 0 AND signal & 1 <> 0;
    v_more := jsonb_build_object('acted', v_acted, 'born', v_born, 'at', p_now, 'mail', FOUND, 'ended', v_touched.ended,
                                 'woken', v_touched.woken, 'work', v_touched.work)::text;
    UPDATE {schema}.holdfast_receipt SET more = v_more WHERE store = p_by AND line = p_line;
    RETURN v_more;
END $$;

-- One act, but for starts: what came of it. The tasks of those it is done to are locked, as far as that was foreseen.
CREATE FUNCTION {schema}.holdfast_act(
    p_now BIGINT, p_by TEXT, p_own {schema}.holdfast_record, p_deed {schema}.holdfast_deed,
    OUT answer TEXT, OUT touched {schema}.holdfast_touched
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_pid BYTEA := {schema}.holdfast_pid(p_own.workflow, p_own.instance_id);
    v_run BIGINT;
    v_to {schema}.holdfast_record;
    v_effect INTEGER;
BEGIN
    answer := 'done';
    IF p_deed.what = 'answer' THEN
        touched := {schema}.holdfast_reply(p_now, p_own.run, v_pid, p_deed);
        IF touched IS NULL THEN
            answer := 'missing';
        END IF;
        PERFORM pg_notify('{channel}', p_by);  -- who asked may be a client
        RETURN;
    END IF;
    v_run := {schema}.holdfast_lock(p_deed.workflow, p_deed.instance_id);
    SELECT * INTO v_to FROM {schema}.holdfast_record WHERE run = v_run;
    IF v_to.run IS NULL THEN
        answer := 'missing';
    ELSIF p_deed.what = 'watch' THEN
        touched := {schema}.holdfast_watch_run(p_now, p_own.run, v_to, p_deed.number::int);
    ELSIF p_deed.what = 'unwatch' THEN
        PERFORM {schema}.holdfast_unwatch(p_own.run, v_to.run, p_deed.number::int);
        IF p_deed.number & 2 <> 0 THEN
            PERFORM {schema}.holdfast_unwatch(v_to.run, p_own.run, 2);
        END IF;
    ELSIF v_to.epoch IS NULL THEN
        answer := 'ended';
    ELSIF p_deed.what = 'send' THEN
        v_effect := {schema}.holdfast_put(p_now, v_to, p_deed.type, p_deed.payload, p_deed.sender, p_deed.ask,
                                          p_deed.dedup, p_deed.token);
        IF v_effect > 1 THEN
            touched.woken := ARRAY[v_to.run];
            touched.work := v_effect = 3;
        END IF;
    ELSIF p_deed.what = 'cancel' THEN
        touched := {schema}.holdfast_ask_to_cancel(
            p_now, p_by, v_to.run, p_deed.payload, p_deed.note, p_deed.number, v_pid);
    ELSE
        touched := {schema}.holdfast_end(p_now, p_by, v_to.run, 'terminated', NULL, NULL, p_deed.note, NULL, false);
        touched.ended := v_to.run || touched.ended;
    END IF;
    IF touched.woken IS NOT NULL THEN
        PERFORM pg_notify('{channel}', p_by);
    END IF;
END $$;

-- One that has ended already is told of at once.
CREATE FUNCTION {schema}.holdfast_watch_run(
    p_now BIGINT, p_own BIGINT, p_to {schema}.holdfast_record, p_watch INTEGER
) RETURNS {schema}.holdfast_touched LANGUAGE plpgsql AS $$
BEGIN
    IF p_to.epoch IS NULL THEN
        RETURN (SELECT {schema}.holdfast_post_one(p_now, p_own, '@exit', {schema}.holdfast_exit(p_watch, r),
                                                  {schema}.holdfast_pid(r.workflow, r.instance_id))
                  FROM {schema}.holdfast_run AS r WHERE r.id = p_to.run);
    END IF;
    UPDATE {schema}.holdfast_task SET bound = true WHERE run IN (p_own, p_to.run) AND unit = 0 AND NOT bound;
    INSERT INTO {schema}.holdfast_watch AS w (target, watcher, kind)
    SELECT a.target, a.watcher, bit_or(a.kind)
      FROM (VALUES (p_to.run, p_own, p_watch), (p_own, p_to.run, p_watch & 2)) AS a (target, watcher, kind)
     WHERE a.kind <> 0 GROUP BY a.target, a.watcher
    ON CONFLICT (target, watcher) DO UPDATE SET kind = w.kind | excluded.kind;
    RETURN NULL;
END $$;

CREATE FUNCTION {schema}.holdfast_unwatch(p_watcher BIGINT, p_target BIGINT, p_watch INTEGER) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.holdfast_watch SET kind = kind & ~p_watch WHERE target = p_target AND watcher = p_watcher;
    DELETE FROM {schema}.holdfast_watch WHERE target = p_target AND watcher = p_watcher AND kind = 0;
END $$;

-- Keeps an answer with the event it is for, and sends it to the run that asked, if it was one. NULL: no such event.
CREATE FUNCTION {schema}.holdfast_reply(p_now BIGINT, p_own BIGINT, p_pid BYTEA, p_deed {schema}.holdfast_deed)
RETURNS {schema}.holdfast_touched LANGUAGE plpgsql AS $$
DECLARE
    v_event {schema}.holdfast_event;
    v_asker BIGINT;
    v_touched {schema}.holdfast_touched;
BEGIN
    SELECT * INTO v_event FROM {schema}.holdfast_event WHERE run = p_own AND n = p_deed.number;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    v_touched.work := false;
    UPDATE {schema}.holdfast_event SET reply_ok = p_deed.ok, reply = p_deed.payload
     WHERE run = p_own AND n = p_deed.number AND reply_ok IS NULL;  -- what was answered once stays
    IF FOUND AND v_event.ask IS NOT NULL THEN
        v_asker := {schema}.holdfast_run_of(v_event.sender);
    END IF;
    IF v_asker IS NOT NULL THEN
        PERFORM 1 FROM {schema}.holdfast_task WHERE run = v_asker AND unit = 0 FOR NO KEY UPDATE;
        v_touched := {schema}.holdfast_post_one(
            p_now, v_asker, '@reply', '{"ask":'::bytea || {schema}.holdfast_json(v_event.ask)
                || CASE WHEN p_deed.ok THEN ',"ok":true,"value":'::bytea ELSE ',"ok":false,"value":'::bytea END
                || coalesce(p_deed.payload, 'null'::bytea) || '}'::bytea, p_pid);
    END IF;
    RETURN v_touched;
END $$;

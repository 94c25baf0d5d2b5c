-- Operations: the effects of a run on other runs, in the transaction of its commit.

-- Build one holdfast_operation for each entry of the arrays.
CREATE OR REPLACE FUNCTION {schema}.holdfast_build_operations(
    {operations.parameters}
) RETURNS {schema}.holdfast_operation[] LANGUAGE sql STABLE AS $$
    SELECT array_agg(ROW({operations.columns a})::{schema}.holdfast_operation ORDER BY a.ord)
      FROM {operations.operations.numbered_rows}
$$;

-- Lock the task of a run that is about to commit and the tasks of all runs that the commit affects, in lock order.
-- Returns the time of the call.
CREATE OR REPLACE FUNCTION {schema}.holdfast_lock_for_operations(
    p_now BIGINT, p_run BIGINT, p_ends BOOLEAN, p_operations {schema}.holdfast_operation[],
    p_new {schema}.holdfast_new_run[]
) RETURNS BIGINT LANGUAGE plpgsql
{planner.nested_loops} AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_ending BIGINT[];
    v_others BIGINT[];
BEGIN
    SELECT array_agg(run) FILTER (WHERE kind IN ({OperationKind.TERMINATE}, {OperationKind.CANCEL})), array_agg(run)
      INTO v_ending, v_others
      FROM (SELECT d.kind, CASE d.kind
                WHEN {OperationKind.REPLY} THEN {schema}.holdfast_run_of_pid(
                    (SELECT e.sender FROM {schema}.holdfast_event AS e WHERE e.run = p_run AND e.n = d.number))
                ELSE {schema}.holdfast_current_run(d.workflow, d.instance_id) END AS run
              FROM unnest(p_operations) AS d WHERE d.kind <> {OperationKind.START}
            UNION ALL
            SELECT CASE WHEN n.on_conflict = {OnConflict.TERMINATE_EXISTING} THEN {OperationKind.TERMINATE} END,
                   {schema}.holdfast_current_run(n.workflow, n.instance_id)
              FROM unnest(p_new) AS n) AS x
     WHERE run IS NOT NULL;
    IF p_ends AND EXISTS (SELECT FROM {schema}.holdfast_task WHERE run = p_run AND unit = 0 AND bound) THEN
        v_ending := v_ending || p_run;
    END IF;
    IF v_others IS NOT NULL OR v_ending IS NOT NULL THEN
        PERFORM {schema}.holdfast_lock_affected(v_ending, v_others || p_run);
    END IF;
    RETURN v_now;
END $$;

-- Apply the rest of a commit that holdfast_commit has written: attributes, operations with their facts, and the end of
-- the run. p_verdict: the verdict of the commit; p_more: the stored result, if an earlier attempt of the call was
-- committed. Returns the result as JSON.
CREATE OR REPLACE FUNCTION {schema}.holdfast_apply_following(
    p_verdict INTEGER, p_more TEXT, p_now BIGINT, p_store TEXT, p_sequence INTEGER, p_run BIGINT,
    p_operations {schema}.holdfast_operation[], p_new {schema}.holdfast_new_run[],
    p_parts {schema}.holdfast_plans_and_units,
    {following.parameters}
) RETURNS TEXT LANGUAGE plpgsql
{planner.nested_loops} AS $$
#variable_conflict use_column
DECLARE
    v_record {schema}.holdfast_record;
    v_affected {schema}.holdfast_affected;
    v_results TEXT[] := '{}';
    v_claimed TEXT[];
    v_first INTEGER := 1;
    v_last INTEGER;
    v_started RECORD;
    v_result RECORD;
    v_more TEXT;
BEGIN
    IF p_more IS NOT NULL OR p_verdict < {VerdictNumber.APPLIED} THEN
        RETURN p_more;
    END IF;
    SELECT * INTO v_record FROM {schema}.holdfast_record WHERE run = p_run;
    IF p_memo IS NOT NULL OR p_search IS NOT NULL THEN
        UPDATE {schema}.holdfast_run
           SET memo = coalesce(p_memo, memo), search = coalesce(p_search, search), updated_at = p_now
         WHERE id = p_run;
    END IF;
    IF p_search IS NOT NULL THEN
        DELETE FROM {schema}.holdfast_term WHERE instance = v_record.instance;
        INSERT INTO {schema}.holdfast_term (instance, workflow, key, text, number)
        SELECT DISTINCT v_record.instance, v_record.workflow, t.key, t.text, t.number
          FROM unnest(p_term_key, p_term_text, p_term_number) AS t (key, text, number);
    END IF;

    WHILE v_first <= coalesce(cardinality(p_operations), 0) LOOP
        v_last := v_first;
        IF p_run = ANY (v_affected.ended) THEN  -- ended by an earlier operation of this commit
            v_results := v_results || {RequestResult.ENDED}::text;
        ELSIF p_operations[v_first].kind = {OperationKind.START} THEN  -- adjacent starts are created together
            WHILE p_operations[v_last + 1].kind = {OperationKind.START} LOOP
                v_last := v_last + 1;
            END LOOP;
            v_started := {schema}.holdfast_apply_starts(
                p_now, p_store, p_new, p_parts, p_operations[v_first].number, p_operations[v_last].number, v_first);
            v_results := v_results || v_started.results;
            v_claimed := v_claimed || v_started.claimed;
            v_affected := {schema}.holdfast_merge_affected(v_affected, v_started.affected);
        ELSE
            SELECT d.* INTO v_result
              FROM {schema}.holdfast_apply_operation(p_now, p_store, v_record, p_operations[v_first]) AS d;
            v_results := v_results || v_result.result;
            v_affected := {schema}.holdfast_merge_affected(v_affected, v_result.affected);
        END IF;
        v_first := v_last + 1;
    END LOOP;
    INSERT INTO {schema}.holdfast_fact (run, ok, value, {following.facts.columns})
    SELECT p_run, f.result IN ({RequestResult.DONE}, {RequestResult.EXISTING}),
           convert_to('"' || f.result || '"', 'UTF8'), {following.facts.columns f}
      FROM unnest(v_results, {following.facts.names}) AS f (result, {following.facts.columns});

    -- Unless an operation has ended the run.
    IF p_status IS NOT NULL AND EXISTS (SELECT FROM {schema}.holdfast_task WHERE run = p_run AND unit = 0) THEN
        v_affected := {schema}.holdfast_merge_affected(v_affected, CASE
            WHEN p_next THEN {schema}.holdfast_end_with_successor(
                p_now, p_store, p_run, p_status, p_output, p_error, p_note, p_token, p_params, p_run_at, p_attempt,
                p_expires_ms, p_expiry, p_continues, p_options, p_unit, p_unit_key, p_unit_missing)
            ELSE {schema}.holdfast_end_run(
                p_now, p_store, p_run, p_status, p_output, p_error, p_note, NULL, false) END);
    END IF;
    -- The result reports events that the run sent to itself, so the signal is cleared.
    UPDATE {schema}.holdfast_task SET signal = signal & ~{Signal.EVENTS}
     WHERE run = p_run AND unit = 0 AND signal & {Signal.EVENTS} <> 0;
    v_more := jsonb_build_object(
        'operation_results', v_results, 'claimed_children', v_claimed, 'at', p_now, 'events', FOUND,
        'ended', v_affected.ended, 'woken', v_affected.woken, 'work', v_affected.work)::text;
    UPDATE {schema}.holdfast_receipt SET more = v_more WHERE store = p_store AND sequence = p_sequence;
    RETURN v_more;
END $$;

-- Create the runs p_new[p_from:p_to], which adjacent operations start; p_position is the position of the first of these
-- operations. Returns the results, the runs that were created claimed (as JSON: position, run, number, instance), and
-- the affected runs.
CREATE OR REPLACE FUNCTION {schema}.holdfast_apply_starts(
    p_now BIGINT, p_store TEXT, p_new {schema}.holdfast_new_run[], p_parts {schema}.holdfast_plans_and_units,
    p_from BIGINT, p_to BIGINT, p_position INTEGER,
    OUT results TEXT[], OUT claimed TEXT[], OUT affected {schema}.holdfast_affected
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_result RECORD;
BEGIN
    FOR v_result IN
        SELECT * FROM {schema}.holdfast_create(p_now, p_store, false, p_new[p_from:p_to], p_parts)
    LOOP
        results[v_result.ord - p_from + 1] := v_result.result;
        IF v_result.result = {RequestResult.DONE} AND v_result.claimed THEN
            claimed := claimed || jsonb_build_array(
                p_position + v_result.ord - p_from, v_result.run, v_result.number, v_result.instance)::text;
            v_result.work := v_result.work OR (p_new[v_result.ord].units > 0 AND EXISTS (
                SELECT FROM {schema}.holdfast_task
                 WHERE run = v_result.run AND unit > 0 AND owner IS NULL AND run_at IS NOT NULL));
        ELSIF v_result.result = {RequestResult.DONE} THEN
            v_result.work := v_result.work OR p_new[v_result.ord].delay_ms <= 0;
        END IF;
        affected.ended := affected.ended || v_result.ended;
        affected.woken := affected.woken || v_result.woken;
        affected.work := coalesce(affected.work, false) OR coalesce(v_result.work, false);
    END LOOP;
END $$;

-- Apply one operation other than a start; returns its result and the affected runs. holdfast_lock_for_operations has
-- locked the tasks of the runs that were the targets at that time.
CREATE OR REPLACE FUNCTION {schema}.holdfast_apply_operation(
    p_now BIGINT, p_store TEXT, p_own {schema}.holdfast_record, p_operation {schema}.holdfast_operation,
    OUT result TEXT, OUT affected {schema}.holdfast_affected
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_pid BYTEA := {schema}.holdfast_pid(p_own.workflow, p_own.instance_id);
    v_run BIGINT;
    v_target {schema}.holdfast_record;
    v_effect INTEGER;
BEGIN
    result := {RequestResult.DONE};
    IF p_operation.kind = {OperationKind.REPLY} THEN
        affected := {schema}.holdfast_reply(p_now, p_own.run, v_pid, p_operation);
        IF affected IS NULL THEN
            result := {RequestResult.MISSING};
        END IF;
        PERFORM pg_notify('{channel}', p_store);  -- the asker may be a client in another process
        RETURN;
    END IF;
    v_run := {schema}.holdfast_lock_current_run(p_operation.workflow, p_operation.instance_id);
    SELECT * INTO v_target FROM {schema}.holdfast_record WHERE run = v_run;
    IF v_target.run IS NULL THEN
        result := {RequestResult.MISSING};
    ELSIF p_operation.kind = {OperationKind.WATCH} THEN
        affected := {schema}.holdfast_watch_run(p_now, p_own.run, v_target, p_operation.number::int);
    ELSIF p_operation.kind = {OperationKind.UNWATCH} THEN
        PERFORM {schema}.holdfast_unwatch_run(p_own.run, v_target.run, p_operation.number::int);
        IF p_operation.number & {Watch.LINK} <> 0 THEN
            PERFORM {schema}.holdfast_unwatch_run(v_target.run, p_own.run, {Watch.LINK});
        END IF;
    ELSIF v_target.epoch IS NULL THEN
        result := {RequestResult.ENDED};
    ELSIF p_operation.kind = {OperationKind.SEND} THEN
        v_effect := {schema}.holdfast_add_event(p_now, v_target, p_operation.type, p_operation.payload,
                                                p_operation.sender, p_operation.ask, p_operation.dedup,
                                                p_operation.token, p_operation.trace);
        IF v_effect >= {AddedEvent.SIGNALLED} THEN
            affected.woken := ARRAY[v_target.run];
            affected.work := v_effect = {AddedEvent.DUE};
        END IF;
    ELSIF p_operation.kind = {OperationKind.CANCEL} AND p_operation.ok
          AND NOT EXISTS (SELECT FROM {schema}.holdfast_run AS r
                           WHERE r.id = v_target.run AND r.parent = convert_from(v_pid, 'UTF8')) THEN
        NULL;  -- not a child of this run (children_only)
    ELSIF p_operation.kind = {OperationKind.CANCEL} THEN
        affected := {schema}.holdfast_request_cancel(
            p_now, p_store, v_target.run, p_operation.payload, p_operation.note, p_operation.number, v_pid);
    ELSE
        affected := {schema}.holdfast_end_run(
            p_now, p_store, v_target.run, {Status.TERMINATED}, NULL, NULL, p_operation.note, NULL, false);
        affected.ended := v_target.run || affected.ended;
    END IF;
    IF affected.woken IS NOT NULL THEN
        PERFORM pg_notify('{channel}', p_store);
    END IF;
END $$;

-- Watch a run. If it has ended already, the watcher gets the exit event at once.
CREATE OR REPLACE FUNCTION {schema}.holdfast_watch_run(
    p_now BIGINT, p_own BIGINT, p_target {schema}.holdfast_record, p_watch INTEGER
) RETURNS {schema}.holdfast_affected LANGUAGE plpgsql AS $$
BEGIN
    IF p_target.epoch IS NULL THEN
        RETURN (SELECT {schema}.holdfast_send_engine_event(
                           p_now, p_own, {EXIT}, {schema}.holdfast_exit_payload(p_watch, r),
                           {schema}.holdfast_pid(r.workflow, r.instance_id))
                  FROM {schema}.holdfast_run AS r WHERE r.id = p_target.run);
    END IF;
    UPDATE {schema}.holdfast_task SET bound = true WHERE run IN (p_own, p_target.run) AND unit = 0 AND NOT bound;
    INSERT INTO {schema}.holdfast_watch AS w (target, watcher, kind)
    SELECT a.target, a.watcher, bit_or(a.kind)
      FROM (VALUES (p_target.run, p_own, p_watch), (p_own, p_target.run, p_watch & {Watch.LINK}))
           AS a (target, watcher, kind)
     WHERE a.kind <> 0 GROUP BY a.target, a.watcher
    ON CONFLICT (target, watcher) DO UPDATE SET kind = w.kind | excluded.kind;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION {schema}.holdfast_unwatch_run(p_watcher BIGINT, p_target BIGINT, p_watch INTEGER)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.holdfast_watch SET kind = kind & ~p_watch WHERE target = p_target AND watcher = p_watcher;
    DELETE FROM {schema}.holdfast_watch WHERE target = p_target AND watcher = p_watcher AND kind = 0;
END $$;

-- Store a reply with its event, and send it to the asking run, if a run asked. NULL: there is no such event.
CREATE OR REPLACE FUNCTION {schema}.holdfast_reply(
    p_now BIGINT, p_own BIGINT, p_pid BYTEA, p_operation {schema}.holdfast_operation
) RETURNS {schema}.holdfast_affected LANGUAGE plpgsql AS $$
DECLARE
    v_event {schema}.holdfast_event;
    v_asker BIGINT;
    v_affected {schema}.holdfast_affected;
BEGIN
    SELECT * INTO v_event FROM {schema}.holdfast_event WHERE run = p_own AND n = p_operation.number;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    v_affected.work := false;
    UPDATE {schema}.holdfast_event SET reply_ok = p_operation.ok, reply = p_operation.payload
     WHERE run = p_own AND n = p_operation.number AND reply_ok IS NULL;  -- the first reply stays
    IF FOUND AND v_event.ask IS NOT NULL THEN
        v_asker := {schema}.holdfast_run_of_pid(v_event.sender);
    END IF;
    IF v_asker IS NOT NULL THEN
        PERFORM 1 FROM {schema}.holdfast_task WHERE run = v_asker AND unit = 0 FOR NO KEY UPDATE;
        v_affected := {schema}.holdfast_send_engine_event(
            p_now, v_asker, {REPLY}, '{"ask":'::bytea || {schema}.holdfast_json_string(v_event.ask)
                || CASE WHEN p_operation.ok THEN ',"ok":true,"value":'::bytea ELSE ',"ok":false,"value":'::bytea END
                || coalesce(p_operation.payload, 'null'::bytea) || '}'::bytea, p_pid);
        UPDATE {schema}.holdfast_event SET trace = p_operation.trace
         WHERE run = v_asker AND p_operation.trace IS NOT NULL
           AND n = (SELECT max(n) FROM {schema}.holdfast_event WHERE run = v_asker);
    END IF;
    RETURN v_affected;
END $$;

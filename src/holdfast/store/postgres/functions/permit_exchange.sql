-- The exchange of permits between a worker and the database (permits.sql and permit_grants.sql have its parts).

-- Make tasks due that have a granted permit and no owner. A locked task is left to the next exchange. Returns the number
-- of tasks that became due.
CREATE OR REPLACE FUNCTION {schema}.holdfast_wake_granted(p_now BIGINT) RETURNS INTEGER LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_permits BIGINT[];
    v_runs BIGINT[];
    v_units BIGINT[];
BEGIN
    SELECT array_agg(l.id), array_agg(l.run), array_agg(l.unit) INTO v_permits, v_runs, v_units
      FROM (SELECT p.id, t.run, t.unit FROM {schema}.holdfast_permit AS p
              JOIN {schema}.holdfast_task AS t ON t.run = p.run AND t.unit = p.unit
             WHERE p.state = {PermitState.GRANTED} AND p.owner IS NULL AND NOT p.woken
               FOR NO KEY UPDATE OF t SKIP LOCKED) AS l;
    IF v_permits IS NULL THEN
        RETURN 0;
    END IF;
    -- The tasks of a paused run are due when it is resumed.
    UPDATE {schema}.holdfast_task AS t SET run_at = p_now FROM unnest(v_runs, v_units) AS l (run, unit)
     WHERE t.run = l.run AND t.unit = l.unit AND t.owner IS NULL
       AND (SELECT status FROM {schema}.holdfast_run WHERE id = t.run) <> {Status.PAUSED};
    UPDATE {schema}.holdfast_permit SET woken = true WHERE id = ANY (v_permits);
    RETURN cardinality(v_permits);
END $$;

-- Record that runs, whose tasks this transaction has locked, have taken the tokens of their rates: their later turns
-- continue, and take none. A grant does not record it, because it locks no tasks, and because the permit of a run that is
-- paused before it begins is withdrawn: the request that adopts the granted permit does.
CREATE OR REPLACE FUNCTION {schema}.holdfast_mark_runs_with_tokens(p_runs BIGINT[], p_limits TEXT[]) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF EXISTS (SELECT FROM {schema}.holdfast_limit WHERE rate_count IS NOT NULL) THEN
        UPDATE {schema}.holdfast_task AS t SET has_tokens = true FROM unnest(p_runs, p_limits) AS a (run, limits)
         WHERE t.run = a.run AND t.unit = 0 AND NOT t.has_tokens
           AND EXISTS (SELECT FROM {schema}.holdfast_limits_of(a.limits) AS n
                         JOIN {schema}.holdfast_limit AS f ON f.name = ANY (n.names) AND f.rate_count IS NOT NULL);
    END IF;
END $$;

-- Let requests adopt the permits that earlier requests asked for: a permit that is not held, or one of the same attempt.
-- The result of a request that has none is left as it is.
CREATE OR REPLACE FUNCTION {schema}.holdfast_adopt_permits(p_results INTEGER[], {exchange.requests.parameters})
RETURNS INTEGER[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_adopted RECORD;
BEGIN
    FOR v_adopted IN
        WITH found AS (
            SELECT q.ord, q.owner, q.epoch, q.attempt, q.park, f.id, f.state <> {PermitState.WAITING} AS is_held
              FROM {exchange.requests.numbered_rows}
             CROSS JOIN LATERAL (
                   SELECT p.id, p.state FROM {schema}.holdfast_permit AS p
                    WHERE p.run = q.run AND p.unit = q.unit AND p.step = q.step
                      AND (p.state < {PermitState.HELD} OR p.attempt = q.attempt OR p.until_end)
                    ORDER BY p.state LIMIT 1) AS f
             WHERE p_results[q.ord] IS NULL
        )
        UPDATE {schema}.holdfast_permit AS p
           SET state = CASE WHEN f.is_held THEN {PermitState.HELD} ELSE {PermitState.WAITING} END, owner = f.owner,
               epoch = f.epoch, attempt = f.attempt, parked = CASE WHEN f.park AND NOT f.is_held THEN f.epoch END
          FROM found AS f WHERE p.id = f.id RETURNING f.ord, f.is_held
    LOOP
        p_results[v_adopted.ord] := CASE WHEN v_adopted.is_held THEN {PermitResult.HELD} ELSE {PermitResult.WAITING} END;
    END LOOP;
    RETURN p_results;
END $$;

-- Request permits for tasks that this transaction has locked, in the order of the requests. A request whose result is not
-- NULL needs none. p_has_tokens: the mark of its task.
CREATE OR REPLACE FUNCTION {schema}.holdfast_add_permits(
    p_now BIGINT, p_results INTEGER[], p_has_tokens BOOLEAN[], {exchange.requests.parameters}
) RETURNS INTEGER[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_requests INTEGER[];
    v_limits TEXT[];
    v_needs_tokens BOOLEAN[];
    v_groups BIGINT[];
    v_permits BIGINT[];
    v_take RECORD;
    v_group_at INTEGER[];
    v_tags DOUBLE PRECISION[];
BEGIN
    SELECT array_agg(q.ord), array_agg(q.limits),
           array_agg(NOT (q.unit = 0 AND q.step = ''::bytea AND p_has_tokens[q.ord])),
           array_agg(nextval('{schema}.holdfast_permit_id_seq'))
      INTO v_requests, v_limits, v_needs_tokens, v_permits
      FROM (SELECT q.ord, q.unit, q.step, q.limits FROM {exchange.requests.numbered_rows}
             WHERE p_results[q.ord] IS NULL ORDER BY q.ord) AS q;
    IF v_requests IS NULL THEN
        RETURN p_results;
    END IF;
    v_groups := {schema}.holdfast_groups_of(p_now, v_limits, v_needs_tokens);
    v_take := {schema}.holdfast_take_in_order(
        p_now, v_groups, array_fill(0::double precision, ARRAY[cardinality(v_groups)]), NULL, NULL, NULL, NULL);
    v_group_at := v_take.group_at;
    v_tags := v_take.tags;
    INSERT INTO {schema}.holdfast_permit (id, run, unit, step, attempt, grp, state, priority, tag, until_end, owner,
                                          epoch, parked, requested_at)
    OVERRIDING SYSTEM VALUE
    SELECT n.id, p_q_run[n.ord], p_q_unit[n.ord], p_q_step[n.ord], p_q_attempt[n.ord], n.grp,
           CASE WHEN n.taken THEN {PermitState.HELD} ELSE {PermitState.WAITING} END, p_q_priority[n.ord],
           coalesce(v_tags[n.group_at], 0), p_q_until_end[n.ord],
           CASE WHEN n.taken OR NOT p_q_park[n.ord] THEN p_q_owner[n.ord] END, p_q_epoch[n.ord],
           CASE WHEN NOT n.taken AND p_q_park[n.ord] THEN p_q_epoch[n.ord] END, p_now
      FROM unnest(v_requests, v_permits, v_groups, v_group_at, v_take.taken) AS n (ord, id, grp, group_at, taken);
    -- Groups in which no permit waited before begin to wait at the limit that blocks them.
    UPDATE {schema}.holdfast_permit_group AS g
       SET waiting = g.waiting + j.count,
           name = CASE WHEN g.waiting = 0 THEN j.name ELSE g.name END,
           key = CASE WHEN g.waiting = 0 THEN j.key ELSE g.key END,
           fair = CASE WHEN g.waiting = 0 THEN j.fair ELSE g.fair END,
           pass = CASE WHEN g.waiting = 0 THEN j.pass WHEN g.fair IS NULL AND j.priority < g.head_priority THEN j.tag
                       ELSE g.pass END,
           head = CASE WHEN g.waiting = 0 OR j.priority < g.head_priority THEN j.head ELSE g.head END,
           head_priority = CASE WHEN g.waiting = 0 THEN j.priority ELSE least(g.head_priority, j.priority) END
      FROM (SELECT w.count, w.priority, w.head, t.id, t.name, t.key, t.pass, t.tag, t.fair
              FROM unnest(v_take.groups, v_take.names, v_take.keys, v_take.passes, v_take.tags, v_take.fairs)
                   WITH ORDINALITY AS t (id, name, key, pass, tag, fair, ord)
              JOIN (SELECT n.group_at, count(*) AS count, min(p_q_priority[n.ord]) AS priority,
                           (array_agg(n.id ORDER BY p_q_priority[n.ord], n.id))[1] AS head
                      FROM unnest(v_requests, v_permits, v_group_at, v_take.taken) AS n (ord, id, group_at, taken)
                     WHERE NOT n.taken GROUP BY n.group_at) AS w ON w.group_at = t.ord) AS j
     WHERE g.id = j.id;
    IF v_take.fair_names IS NOT NULL THEN
        PERFORM {schema}.holdfast_set_passes(v_take.fair_names, v_take.fair_keys, v_take.fair_passes);
    END IF;
    FOR i IN 1..cardinality(v_requests) LOOP
        p_results[v_requests[i]] := CASE WHEN v_take.taken[i] THEN {PermitResult.HELD} ELSE {PermitResult.WAITING} END;
    END LOOP;
    RETURN p_results;
END $$;

-- Release tasks whose permits have to wait. p_signals: their signals; a requested pause takes effect.
CREATE OR REPLACE FUNCTION {schema}.holdfast_park_tasks(
    p_now BIGINT, p_runs BIGINT[], p_units BIGINT[], p_signals INTEGER[]
) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_paused BIGINT[];
    v_runs BIGINT[];
    v_units BIGINT[];
BEGIN
    -- A task that had no permits before has no other ones, which the trigger of the release would delete.
    UPDATE {schema}.holdfast_task AS t
       SET owner = NULL, lease_until = NULL, run_at = NULL, lost = t.losses > 0, signal = 0, permits = true
      FROM unnest(p_runs, p_units) AS a (run, unit) WHERE t.run = a.run AND t.unit = a.unit;
    SELECT array_agg(a.run) INTO v_paused FROM unnest(p_runs, p_signals) AS a (run, signal)
     WHERE a.signal & {Signal.PAUSE} <> 0;
    IF v_paused IS NOT NULL THEN
        UPDATE {schema}.holdfast_run SET status = {Status.PAUSED}, note = NULL, updated_at = p_now
         WHERE id = ANY (v_paused);
    END IF;
    -- A task in a paused queue requests its permit when the queue is resumed, a node of a paused graph that was claimed
    -- before the pause after the resume.
    SELECT array_agg(t.run), array_agg(t.unit) INTO v_runs, v_units
      FROM unnest(p_runs, p_units) AS a (run, unit)
      JOIN {schema}.holdfast_task AS t ON t.run = a.run AND t.unit = a.unit
      JOIN {schema}.holdfast_run AS r ON r.id = a.run
     WHERE r.status = {Status.PAUSED}
        OR EXISTS (SELECT FROM {schema}.holdfast_queue AS q WHERE q.name = t.queue AND q.paused);
    IF v_runs IS NOT NULL THEN
        UPDATE {schema}.holdfast_task AS t SET run_at = p_now FROM unnest(v_runs, v_units) AS a (run, unit)
         WHERE t.run = a.run AND t.unit = a.unit
           AND (SELECT status FROM {schema}.holdfast_run WHERE id = t.run) <> {Status.PAUSED};
        DELETE FROM {schema}.holdfast_permit AS p USING unnest(v_runs, v_units) AS a (run, unit)
         WHERE p.run = a.run AND p.unit = a.unit AND p.state < {PermitState.HELD};
    END IF;
END $$;

-- The requests of an exchange, whose tasks this transaction has locked. p_permits, p_has_tokens, p_signals: the marks and
-- signals of these tasks; NULL if the fence of the request does not hold. Returns the results.
CREATE OR REPLACE FUNCTION {schema}.holdfast_request_permits(
    p_now BIGINT, p_permits BOOLEAN[], p_has_tokens BOOLEAN[], p_signals INTEGER[], {exchange.requests.parameters}
) RETURNS INTEGER[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_results INTEGER[];
    v_runs BIGINT[];
    v_units BIGINT[];
    v_limits TEXT[];
    v_signals INTEGER[];
BEGIN
    SELECT array_agg(CASE WHEN a.permits IS NULL THEN {PermitResult.LOST} END ORDER BY a.ord) INTO v_results
      FROM unnest(p_permits) WITH ORDINALITY AS a (permits, ord);
    IF true = ANY (p_permits) THEN
        v_results := {schema}.holdfast_adopt_permits(v_results, {exchange.requests.names});
    END IF;
    v_results := {schema}.holdfast_add_permits(p_now, v_results, p_has_tokens, {exchange.requests.names});
    SELECT array_agg(q.run), array_agg(q.limits) INTO v_runs, v_limits FROM {exchange.requests.numbered_rows}
     WHERE v_results[q.ord] = {PermitResult.HELD} AND q.unit = 0 AND q.step = ''::bytea AND NOT p_has_tokens[q.ord];
    IF v_runs IS NOT NULL THEN
        PERFORM {schema}.holdfast_mark_runs_with_tokens(v_runs, v_limits);
    END IF;
    SELECT array_agg(q.run), array_agg(q.unit), array_agg(p_signals[q.ord]) INTO v_runs, v_units, v_signals
      FROM {exchange.requests.numbered_rows} WHERE v_results[q.ord] = {PermitResult.WAITING} AND q.park;
    IF v_runs IS NOT NULL THEN
        PERFORM {schema}.holdfast_park_tasks(p_now, v_runs, v_units, v_signals);
    END IF;
    IF false = ANY (p_permits) THEN
        UPDATE {schema}.holdfast_task AS t SET permits = true
          FROM unnest(p_q_run, p_q_unit, p_permits) AS q (run, unit, permits)
         WHERE t.run = q.run AND t.unit = q.unit AND NOT q.permits AND NOT t.permits;
    END IF;
    RETURN v_results;
END $$;

-- One exchange of a worker: returns, grants, requests. p_all: return all permits that the worker holds, because
-- the reply to an earlier attempt of this call was lost. The arrays of limits hold JSON lists of [name, key].
CREATE OR REPLACE FUNCTION {schema}.holdfast_exchange_permits(
    p_now BIGINT, p_store TEXT, p_all BOOLEAN, p_owner TEXT, {exchange.parameters}
) RETURNS TABLE (results INTEGER[], granted_run BIGINT[], granted_unit BIGINT[], granted_step BYTEA[],
                 granted_attempt BIGINT[], granted_epoch BIGINT[], due BOOLEAN, next_at BIGINT) LANGUAGE plpgsql
{planner.nested_loops} AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_permits BOOLEAN[] := array_fill(NULL::boolean, ARRAY[cardinality(p_q_run)]);
    v_has_tokens BOOLEAN[] := v_permits;
    v_signals INTEGER[] := array_fill(NULL::integer, ARRAY[cardinality(p_q_run)]);
    v_task RECORD;
    v_held {schema}.holdfast_permit[];
    v_woken INTEGER;
BEGIN
    IF cardinality(p_q_run) = 0 AND cardinality(p_x_run) = 0 AND NOT p_all
       AND NOT EXISTS (SELECT FROM {schema}.holdfast_limit_use WHERE freed)
       AND NOT EXISTS (SELECT FROM {schema}.holdfast_limit_use WHERE ready_at IS NOT NULL AND ready_at <= v_now)
       AND NOT EXISTS (SELECT FROM {schema}.holdfast_permit
                        WHERE state = {PermitState.GRANTED} AND (owner = p_owner OR (owner IS NULL AND NOT woken))) THEN
        SELECT false, min(ready_at) INTO due, next_at FROM {schema}.holdfast_limit_use WHERE ready_at IS NOT NULL;
        RETURN NEXT;
        RETURN;
    END IF;
    FOR v_task IN
        SELECT q.ord, t.permits, t.has_tokens, t.signal FROM {exchange.requests.numbered_rows}
          JOIN {schema}.holdfast_task AS t
            ON t.run = q.run AND t.unit = q.unit AND (t.owner = q.owner) IS TRUE AND t.epoch = q.epoch
         ORDER BY t.run, t.unit FOR NO KEY UPDATE OF t
    LOOP
        v_permits[v_task.ord] := v_task.permits;
        v_has_tokens[v_task.ord] := v_task.has_tokens;
        v_signals[v_task.ord] := v_task.signal;
    END LOOP;
    PERFORM {schema}.holdfast_lock_permits();
    IF cardinality(p_x_run) > 0 THEN
        DELETE FROM {schema}.holdfast_permit AS p USING {exchange.returns.rows}
         WHERE p.run = x.run AND p.unit = x.unit AND p.step = x.step AND p.attempt = x.attempt AND p.owner = x.owner
           AND p.epoch = x.epoch;
    END IF;
    v_held := {schema}.holdfast_settle_limits(v_now, p_owner);
    IF cardinality(p_q_run) > 0 THEN
        results := {schema}.holdfast_request_permits(
            v_now, v_permits, v_has_tokens, v_signals, {exchange.requests.names});
    END IF;
    v_woken := {schema}.holdfast_wake_granted(v_now);
    IF v_woken > 0 OR EXISTS (SELECT FROM {schema}.holdfast_permit
                               WHERE state = {PermitState.GRANTED} AND owner IS NOT NULL AND owner <> p_owner) THEN
        PERFORM pg_notify('{channel}', p_store);
    END IF;
    WITH held AS (
        UPDATE {schema}.holdfast_permit AS p SET state = {PermitState.HELD}
         WHERE p.state = {PermitState.GRANTED} AND p.owner = p_owner RETURNING p AS permit
    )
    SELECT v_held || array_agg(h.permit) INTO v_held FROM held AS h;
    IF p_all THEN
        SELECT array_agg(p) INTO v_held FROM {schema}.holdfast_permit AS p
         WHERE p.state = {PermitState.HELD} AND p.owner = p_owner;
    END IF;
    SELECT array_agg(run), array_agg(unit), array_agg(step), array_agg(attempt), array_agg(epoch)
      INTO granted_run, granted_unit, granted_step, granted_attempt, granted_epoch FROM unnest(v_held);
    IF EXISTS (SELECT FROM {schema}.holdfast_permit
                WHERE state = {PermitState.GRANTED} AND owner IS NULL AND NOT woken) THEN
        next_at := v_now + {WAKE_RETRY_MS};
    ELSE
        SELECT min(ready_at) INTO next_at FROM {schema}.holdfast_limit_use WHERE ready_at IS NOT NULL;
    END IF;
    due := v_woken > 0;
    RETURN NEXT;
END $$;

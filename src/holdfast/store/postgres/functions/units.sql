-- Units of runs (Advance).

-- Apply a batch of advances. p_a_* have one entry for each advance; p_f_*, p_l_*, p_d_*, p_m_*, p_x_* and p_u_* have
-- one for each fact, log line, delivery, decrement of missing, removed unit and new unit, with the number of its
-- advance. Within a batch, no advance belongs to a task that an earlier one released or removed, and none removes a
-- unit that an earlier one added. Returns which advances were applied, and the tasks that the claimant claimed: runs,
-- then units, then epochs.
--
-- The tasks of all runs concerned are locked first, in lock order, so that no other transaction decrements, frees or
-- ends their units meanwhile. Only claims continue, and they find nothing but tasks that were due before.
CREATE OR REPLACE FUNCTION {schema}.holdfast_advance(
    p_now BIGINT, p_store TEXT, p_sequence INTEGER, p_n BIGINT, p_owner TEXT, p_lease_ms BIGINT, p_claim_limit BIGINT,
    p_token BIGINT, p_version TEXT, {advance.parameters}
) RETURNS TABLE (applied INTEGER[], taken BIGINT[], due BOOLEAN) LANGUAGE plpgsql
{planner.nested_loops} AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_receipt {schema}.holdfast_receipt;
    v_paused BIGINT[];
    v_fence RECORD;
    v_run BIGINT[];  -- the run of each advance; NULL: not applied
    v_results RECORD;
    v_free RECORD;
    v_free_run BIGINT[];
    v_free_unit BIGINT[];
    v_decrement_run BIGINT[];
    v_taken {schema}.holdfast_taken;
    v_count BIGINT;
    v_moved BOOLEAN;
BEGIN
    SELECT bool_or(l.pin <> '' AND l.pin IS DISTINCT FROM p_version) INTO v_moved
      FROM (SELECT t.pin FROM {schema}.holdfast_task AS t WHERE t.run = ANY (p_a_run) AND t.unit = 0 ORDER BY t.run
               FOR NO KEY UPDATE) AS l;
    IF v_moved THEN  -- units of the runs of this batch are left to workers of the other version
        p_claim_limit := 0;
    ELSIF {schema}.holdfast_is_paused(p_a_run) THEN
        p_claim_limit := 0;
    END IF;
    -- Read the receipt under the locks: an earlier attempt of this call may have held them until now.
    v_receipt := {schema}.holdfast_find_receipt(p_store, p_sequence, p_n);
    IF v_receipt.n IS NOT NULL THEN
        RETURN QUERY SELECT v_receipt.verdicts, v_receipt.taken, v_receipt.due[1];
        RETURN;
    END IF;
    v_paused := ARRAY(SELECT id FROM {schema}.holdfast_run WHERE id = ANY (p_a_run) AND status = {Status.PAUSED});
    v_fence := {schema}.holdfast_fence_advances(v_now, v_paused, {advance.advances.names});
    v_run := v_fence.run;
    v_paused := v_paused || v_fence.pausing;
    v_free_run := v_fence.free_run;
    v_free_unit := v_fence.free_unit;

    v_results := {schema}.holdfast_add_unit_facts(v_run, {advance.facts.names});
    IF {FactState.SETTLEMENT} = ANY (p_f_state) THEN
        PERFORM pg_notify('{channel}', 'stream ' || p_store);
    END IF;
    IF cardinality(p_l_advance) > 0 THEN
        v_count := {schema}.holdfast_add_logs(
            ARRAY(SELECT v_run[l.advance] FROM unnest(p_l_advance) WITH ORDINALITY AS l (advance, ord) ORDER BY l.ord),
            {plain.logs.names});
    END IF;
    IF cardinality(p_d_advance) > 0 THEN
        v_count := {schema}.holdfast_consume_events(
            ARRAY(SELECT v_run[d.advance] FROM unnest(p_d_advance) WITH ORDINALITY AS d (advance, ord) ORDER BY d.ord),
            p_d_event, p_d_key, p_d_at);
    END IF;
    IF cardinality(p_x_advance) > 0 THEN
        v_count := {schema}.holdfast_remove_units(v_run, {advance.removed_units.names});
    END IF;
    IF cardinality(p_u_advance) > 0 THEN
        v_free := {schema}.holdfast_add_units(v_now, v_paused, v_run, {advance.new_units.names});
        v_free_run := v_free_run || v_free.run;
        v_free_unit := v_free_unit || v_free.unit;
    END IF;

    IF cardinality(p_m_advance) > 0 THEN
        v_decrement_run := ARRAY(
            SELECT v_run[m.advance] FROM unnest(p_m_advance) WITH ORDINALITY AS m (advance, ord) ORDER BY m.ord);
    END IF;
    v_taken := {schema}.holdfast_take_due(
        v_now, p_owner, v_now + p_lease_ms, p_claim_limit, p_token, v_paused, v_decrement_run, p_m_unit, p_m_decrement,
        v_free_run, v_free_unit, v_results.run, v_results.count, v_fence.released, v_fence.released_seen);
    IF cardinality(array_remove(p_a_started_at, NULL)) > 0 THEN
        v_count := {schema}.holdfast_set_started(v_now, v_run, p_a_started_at);
    END IF;
    IF v_fence.pausing IS NOT NULL THEN
        PERFORM {schema}.holdfast_set_paused(v_now, a.run, NULL) FROM unnest(v_fence.pausing) AS a (run);
    END IF;
    IF v_fence.pausing IS NOT NULL OR v_taken.due THEN
        PERFORM pg_notify('{channel}', p_store);
    END IF;
    applied := v_fence.applied;
    taken := v_taken.runs || v_taken.units || v_taken.epochs;
    due := v_taken.due;
    v_count := {schema}.holdfast_write_receipt(p_store, p_sequence, p_n, v_now, applied, '{}', ARRAY[due], NULL, taken);
    RETURN NEXT;
END $$;

-- Remove and release the tasks of advances whose fence holds: the conditions of the DELETE and the UPDATE. IS TRUE
-- keeps the planner off the index by owner. applied has 1 for each advance whose fence holds, and run has its run.
-- pausing has released runs with a requested pause; free_run and free_unit have released units that are due; released
-- and released_seen have the runs whose unit 0 was released.
CREATE OR REPLACE FUNCTION {schema}.holdfast_fence_advances(
    p_now BIGINT, p_paused BIGINT[], {advance.advances.parameters},
    OUT applied INTEGER[], OUT run BIGINT[], OUT pausing BIGINT[], OUT free_run BIGINT[], OUT free_unit BIGINT[],
    OUT released BIGINT[], OUT released_seen BIGINT[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_removed INTEGER[];
    v_released INTEGER[];
    v_at INTEGER;
BEGIN
    WITH gone AS (
        DELETE FROM {schema}.holdfast_task AS t USING {advance.advances.numbered_rows}
         WHERE NOT a.release AND t.run = a.run AND t.unit = a.unit AND (t.owner = a.owner) IS TRUE AND t.epoch = a.epoch
        RETURNING a.ord
    )
    SELECT array_agg(ord) INTO v_removed FROM gone;
    IF true = ANY (p_a_release) THEN
        WITH freed AS (
            UPDATE {schema}.holdfast_task AS t
               SET owner = NULL, lease_until = NULL, losses = 0, signal = t.signal & {Signal.PAUSE},
                   run_at = CASE WHEN a.run <> ALL (p_paused) THEN a.run_at END,
                   resume_at = CASE WHEN a.run = ANY (p_paused) THEN a.run_at END,
                   kind = CASE WHEN a.run_at <= p_now THEN {TaskKind.RESUME} ELSE {TaskKind.RETRY} END,
                   bucket = {Bucket.CONTINUING}, missing = CASE WHEN t.unit = 0 THEN t.missing ELSE a.missing END
              FROM {advance.advances.numbered_rows}
             WHERE a.release AND t.run = a.run AND t.unit = a.unit AND (t.owner = a.owner) IS TRUE AND t.epoch = a.epoch
            RETURNING a.ord, a.seen, t.run, t.unit, t.run_at, t.signal
        )
        SELECT array_agg(ord), array_agg(run) FILTER (WHERE signal <> 0),
               array_agg(run) FILTER (WHERE unit > 0 AND run_at <= p_now),
               array_agg(unit) FILTER (WHERE unit > 0 AND run_at <= p_now),
               array_agg(run ORDER BY ord) FILTER (WHERE unit = 0),
               array_agg(seen ORDER BY ord) FILTER (WHERE unit = 0)
          INTO v_released, pausing, free_run, free_unit, released, released_seen
          FROM freed;
    END IF;
    applied := array_fill(0, ARRAY[cardinality(p_a_run)]);
    run := array_fill(NULL::bigint, ARRAY[cardinality(p_a_run)]);
    FOREACH v_at IN ARRAY coalesce(v_removed || v_released, v_removed, v_released, '{}') LOOP
        applied[v_at] := 1;
        run[v_at] := p_a_run[v_at];
    END LOOP;
END $$;

-- Write the facts of advances; p_run has the run of each advance, or NULL. An existing RESULT is kept. Returns the runs
-- that got new RESULTs, and their number.
CREATE OR REPLACE FUNCTION {schema}.holdfast_add_unit_facts(
    p_run BIGINT[], {advance.facts.parameters}, OUT run BIGINT[], OUT count BIGINT[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    WITH made AS (
        INSERT INTO {schema}.holdfast_fact (run, {fact.columns})
        SELECT p_run[f.advance], {fact.columns f} FROM {advance.facts.rows}
         WHERE f.state = {FactState.RESULT} AND p_run[f.advance] IS NOT NULL
        ON CONFLICT (run, state, key, n) DO NOTHING
        RETURNING run
    )
    SELECT array_agg(x.run), array_agg(x.n) INTO run, count
      FROM (SELECT run, count(*) AS n FROM made GROUP BY run) AS x;
    IF {FactState.RESULT} <> ANY (p_f_state) THEN
        INSERT INTO {schema}.holdfast_fact (run, {fact.columns})
        SELECT p_run[f.advance], {fact.columns f} FROM {advance.facts.rows}
         WHERE f.state <> {FactState.RESULT} AND p_run[f.advance] IS NOT NULL;
    END IF;
END $$;

-- Delete the tasks of units; p_run has the run of each advance, or NULL. Returns the number of entries.
CREATE OR REPLACE FUNCTION {schema}.holdfast_remove_units(p_run BIGINT[], {advance.removed_units.parameters})
RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    v_removed RECORD;
BEGIN
    FOR v_removed IN SELECT p_run[x.advance] AS run, x.unit FROM {advance.removed_units.rows} LOOP
        DELETE FROM {schema}.holdfast_task AS t
         WHERE t.run = v_removed.run AND t.unit = v_removed.unit AND t.unit > 0;
    END LOOP;
    RETURN cardinality(p_x_unit);
END $$;

-- Insert the tasks of new units; p_run has the run of each advance, or NULL. A unit that exists is kept. Returns the
-- inserted units that are due. A unit that is added again continues its epochs: its START facts stay, and no stale
-- fence matches.
CREATE OR REPLACE FUNCTION {schema}.holdfast_add_units(
    p_now BIGINT, p_paused BIGINT[], p_run BIGINT[], {advance.new_units.parameters},
    OUT run BIGINT[], OUT unit BIGINT[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    WITH added AS (
        INSERT INTO {schema}.holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, epoch,
                                            losses, lost, signal, topics, missing, key, pin)
        SELECT t.run, u.unit, t.workflow, t.queue, {Bucket.CONTINUING}, {TaskKind.RESUME}, t.priority,
               CASE WHEN u.missing = 0 AND t.run <> ALL (p_paused) THEN p_now END,
               coalesce((SELECT max(f.n) FROM {schema}.holdfast_fact AS f
                          WHERE f.run = t.run AND f.state = {FactState.START} AND f.key = u.key), 0),
               0, false, {Signal.NONE}, '', u.missing, u.key, t.pin
          FROM {advance.new_units.rows}
         CROSS JOIN LATERAL (
               SELECT * FROM {schema}.holdfast_task WHERE run = p_run[u.advance] AND unit = 0 OFFSET 0) AS t
        ON CONFLICT (run, unit) DO NOTHING
        RETURNING run, unit, run_at
    )
    SELECT array_agg(a.run), array_agg(a.unit) INTO run, unit FROM added AS a WHERE a.run_at IS NOT NULL;
END $$;

-- Set started_at of runs that have none, from the first entry of each run. Entries with a NULL are skipped. Returns the
-- number of runs.
CREATE OR REPLACE FUNCTION {schema}.holdfast_set_started(p_now BIGINT, p_run BIGINT[], p_started_at BIGINT[])
RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    v_started RECORD;
    v_count BIGINT := 0;
BEGIN
    FOR v_started IN
        SELECT DISTINCT ON (a.run) a.run, a.started_at
          FROM unnest(p_run, p_started_at) WITH ORDINALITY AS a (run, started_at, ord)
         CROSS JOIN LATERAL (
               SELECT FROM {schema}.holdfast_run WHERE id = a.run AND started_at IS NULL OFFSET 0) AS r
         WHERE a.started_at IS NOT NULL ORDER BY a.run, a.ord
    LOOP
        UPDATE {schema}.holdfast_run SET started_at = v_started.started_at, updated_at = p_now
         WHERE id = v_started.run AND started_at IS NULL;
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END $$;

CREATE OR REPLACE FUNCTION {schema}.holdfast_merge_taken(p_a {schema}.holdfast_taken, p_b {schema}.holdfast_taken)
RETURNS {schema}.holdfast_taken LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW((p_a).runs || (p_b).runs, (p_a).units || (p_b).units, (p_a).epochs || (p_b).epochs,
               (p_a).due OR (p_b).due)::{schema}.holdfast_taken
$$;

-- Claim the tasks that are due as a result of advances: units whose missing is decremented (p_run, p_unit,
-- p_decrement), free units (p_free_run, p_free_unit), and runs that got results (p_result_run, p_result_count) or were
-- released (p_released, p_seen).
CREATE OR REPLACE FUNCTION {schema}.holdfast_take_due(
    p_now BIGINT, p_owner TEXT, p_lease_until BIGINT, p_claim_limit BIGINT, p_token BIGINT, p_paused BIGINT[],
    p_run BIGINT[], p_unit BIGINT[], p_decrement BIGINT[], p_free_run BIGINT[], p_free_unit BIGINT[],
    p_result_run BIGINT[], p_result_count BIGINT[], p_released BIGINT[], p_seen BIGINT[]
) RETURNS {schema}.holdfast_taken LANGUAGE plpgsql AS $$
DECLARE
    v_taken {schema}.holdfast_taken := ROW('{}', '{}', '{}', false);
BEGIN
    IF cardinality(p_run) > 0 THEN
        v_taken := {schema}.holdfast_decrement_units(
            p_now, p_owner, p_lease_until, p_claim_limit, p_token, p_paused, p_run, p_unit, p_decrement);
    END IF;
    IF p_free_run IS NOT NULL THEN
        v_taken := {schema}.holdfast_merge_taken(v_taken, {schema}.holdfast_take_units(
            p_owner, p_lease_until, p_claim_limit - cardinality(v_taken.runs), p_token, p_paused, p_free_run,
            p_free_unit));
    END IF;
    IF cardinality(v_taken.runs) > 0 THEN
        PERFORM {schema}.holdfast_write_starts(p_now, p_owner, p_lease_until, v_taken.runs, v_taken.units);
    END IF;
    IF p_result_run IS NOT NULL OR p_released IS NOT NULL THEN
        v_taken := {schema}.holdfast_merge_taken(v_taken, {schema}.holdfast_decrement_runs(
            p_now, p_owner, p_lease_until, p_token, p_paused, p_result_run, p_result_count, p_released, p_seen));
    END IF;
    RETURN v_taken;
END $$;

-- Decrement missing of units, and claim the first p_claim_limit of those that become due. Entries whose p_run is NULL
-- are skipped. A unit with a due time of its own may be claimed by another call meanwhile; claimed_by = p_token
-- identifies the units that this call claimed.
CREATE OR REPLACE FUNCTION {schema}.holdfast_decrement_units(
    p_now BIGINT, p_owner TEXT, p_lease_until BIGINT, p_claim_limit BIGINT, p_token BIGINT, p_paused BIGINT[],
    p_run BIGINT[], p_unit BIGINT[], p_decrement BIGINT[]
) RETURNS {schema}.holdfast_taken LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_run BIGINT[];
    v_unit BIGINT[];
    v_decrement BIGINT[];
    v_place BIGINT[];
    v_taken {schema}.holdfast_taken;
    v_due BIGINT;
BEGIN
    -- v_place: position among the units that become due; NULL: the unit does not become due.
    SELECT array_agg(x.run ORDER BY x.run, x.unit), array_agg(x.unit ORDER BY x.run, x.unit),
           array_agg(x.decrement ORDER BY x.run, x.unit),
           array_agg(CASE WHEN x.due THEN x.place END ORDER BY x.run, x.unit), count(*) FILTER (WHERE x.due)
      INTO v_run, v_unit, v_decrement, v_place, v_due
      FROM (SELECT o.run, o.unit, o.decrement, d.due,
                   count(*) FILTER (WHERE d.due) OVER (ORDER BY o.run, o.unit) AS place
              FROM (SELECT a.run, a.unit, sum(a.decrement)::bigint AS decrement
                      FROM unnest(p_run, p_unit, p_decrement) AS a (run, unit, decrement)
                     WHERE a.run IS NOT NULL GROUP BY a.run, a.unit) AS o
             CROSS JOIN LATERAL (
                   SELECT * FROM {schema}.holdfast_task WHERE run = o.run AND unit = o.unit OFFSET 0) AS t
             CROSS JOIN LATERAL (
                   SELECT t.owner IS NULL AND t.missing <= o.decrement AND (t.run_at <= p_now) IS NOT TRUE
                          AND o.run <> ALL (p_paused)) AS d (due)) AS x;
    WITH decremented AS (
        UPDATE {schema}.holdfast_task AS t
           SET missing = greatest(t.missing - o.decrement, 0),
               run_at = CASE WHEN o.place IS NOT NULL AND t.owner IS NULL THEN p_now ELSE t.run_at END,
               kind = CASE WHEN o.place IS NOT NULL AND t.owner IS NULL THEN {TaskKind.RESUME} ELSE t.kind END,
               bucket = CASE WHEN o.place IS NOT NULL AND t.owner IS NULL THEN {Bucket.CONTINUING} ELSE t.bucket END,
               owner = CASE WHEN o.place <= p_claim_limit AND t.owner IS NULL THEN p_owner ELSE t.owner END,
               lease_until = CASE WHEN o.place <= p_claim_limit AND t.owner IS NULL THEN p_lease_until
                                  ELSE t.lease_until END,
               epoch = CASE WHEN o.place <= p_claim_limit AND t.owner IS NULL THEN t.epoch + 1 ELSE t.epoch END,
               claimed_by = CASE WHEN o.place <= p_claim_limit AND t.owner IS NULL THEN p_token ELSE t.claimed_by END
          FROM unnest(v_run, v_unit, v_decrement, v_place) AS o (run, unit, decrement, place)
         WHERE t.run = o.run AND t.unit = o.unit
        RETURNING t.run, t.unit, t.epoch, t.claimed_by = p_token AS taken
    )
    SELECT coalesce(array_agg(run), '{}'), coalesce(array_agg(unit), '{}'), coalesce(array_agg(epoch), '{}')
      INTO v_taken.runs, v_taken.units, v_taken.epochs
      FROM decremented WHERE taken;
    v_taken.due := v_due > cardinality(v_taken.runs);
    RETURN v_taken;
END $$;

-- Claim the first p_claim_limit of the given due units.
CREATE OR REPLACE FUNCTION {schema}.holdfast_take_units(
    p_owner TEXT, p_lease_until BIGINT, p_claim_limit BIGINT, p_token BIGINT, p_paused BIGINT[], p_run BIGINT[],
    p_unit BIGINT[]
) RETURNS {schema}.holdfast_taken LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_taken {schema}.holdfast_taken;
    v_due BIGINT;
BEGIN
    WITH free AS (
        SELECT a.run, a.unit, row_number() OVER (ORDER BY a.run, a.unit) AS place
          FROM unnest(p_run, p_unit) AS a (run, unit) WHERE a.run <> ALL (p_paused)
    ), took AS (
        UPDATE {schema}.holdfast_task AS t
           SET owner = p_owner, lease_until = p_lease_until, epoch = t.epoch + 1, claimed_by = p_token
          FROM free AS f WHERE t.run = f.run AND t.unit = f.unit AND f.place <= p_claim_limit
        RETURNING t.run, t.unit, t.epoch
    )
    SELECT coalesce(array_agg(t.run), '{}'), coalesce(array_agg(t.unit), '{}'), coalesce(array_agg(t.epoch), '{}'),
           (SELECT count(*) FROM free)
      INTO v_taken.runs, v_taken.units, v_taken.epochs, v_due
      FROM took AS t;
    v_taken.due := v_due > cardinality(v_taken.runs);
    RETURN v_taken;
END $$;

-- Decrement missing of runs (unit 0; p_run, p_decrement), or handle their release (p_released, p_seen), and claim those
-- that are due as a result.
CREATE OR REPLACE FUNCTION {schema}.holdfast_decrement_runs(
    p_now BIGINT, p_owner TEXT, p_lease_until BIGINT, p_token BIGINT, p_paused BIGINT[], p_run BIGINT[],
    p_decrement BIGINT[], p_released BIGINT[], p_seen BIGINT[]
) RETURNS {schema}.holdfast_taken LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_run BIGINT[];
    v_unit BIGINT[];
    v_missing BIGINT[];
    v_due BOOLEAN[];
    v_taken {schema}.holdfast_taken;
BEGIN
    SELECT array_agg(l.run), array_agg(x.unit), array_agg(greatest(x.missing - l.decrement, 0)), array_agg(
               x.owner IS NULL AND l.run <> ALL (p_paused)
               AND CASE WHEN l.released THEN x.missing <= l.decrement OR l.has_engine_event OR x.run_at <= p_now
                        ELSE x.missing <= l.decrement AND (x.run_at <= p_now) IS NOT TRUE END)
      INTO v_run, v_unit, v_missing, v_due
      FROM (SELECT a.run, sum(a.decrement)::bigint AS decrement, bool_or(a.released) AS released,
                   bool_or(a.has_engine_event) AS has_engine_event
              FROM (SELECT l.run, l.decrement, false, false FROM unnest(p_run, p_decrement) AS l (run, decrement)
                    UNION ALL
                    SELECT b.run, 0, true, EXISTS (
                               SELECT FROM {schema}.holdfast_event AS e
                                WHERE e.run = b.run AND e.n > b.seen AND e.delivered_at IS NULL AND e.type LIKE '@%')
                      FROM unnest(p_released, p_seen) AS b (run, seen)
                   ) AS a (run, decrement, released, has_engine_event)
             GROUP BY a.run) AS l
     CROSS JOIN LATERAL (SELECT * FROM {schema}.holdfast_task WHERE run = l.run AND unit = 0 OFFSET 0) AS x;
    WITH decremented AS (
        UPDATE {schema}.holdfast_task AS t
           SET missing = l.missing, run_at = CASE WHEN l.due THEN p_now ELSE t.run_at END,
               kind = CASE WHEN l.due THEN {TaskKind.RESUME} ELSE t.kind END,
               bucket = CASE WHEN l.due THEN {Bucket.CONTINUING} ELSE t.bucket END,
               owner = CASE WHEN l.due THEN p_owner ELSE t.owner END,
               lease_until = CASE WHEN l.due THEN p_lease_until ELSE t.lease_until END,
               lost = CASE WHEN l.due THEN false ELSE t.lost END,
               epoch = CASE WHEN l.due THEN t.epoch + 1 ELSE t.epoch END,
               claimed_by = CASE WHEN l.due THEN p_token ELSE t.claimed_by END
          FROM unnest(v_run, v_unit, v_missing, v_due) AS l (run, unit, missing, due)
         WHERE t.run = l.run AND t.unit = l.unit
        RETURNING t.run, t.epoch, l.due
    )
    SELECT coalesce(array_agg(run), '{}'), coalesce(array_agg(0), '{}'), coalesce(array_agg(epoch), '{}'), false
      INTO v_taken.runs, v_taken.units, v_taken.epochs, v_taken.due
      FROM decremented WHERE due;
    RETURN v_taken;
END $$;

-- Who holds what, and what becomes of it when a holder is gone.

-- Mail signals are cleared by being read, but nobody waits for a lock here: a heartbeat must not be late.
CREATE FUNCTION {schema}.holdfast_signals(p_owner TEXT, p_all BOOLEAN)
RETURNS TABLE (run BIGINT, unit BIGINT, epoch BIGINT, signal INTEGER) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_mailed BIGINT[];
BEGIN
    WITH mailed AS (
        SELECT t.run, t.unit FROM {schema}.holdfast_task AS t
         WHERE t.owner = p_owner AND t.signal <> 0 AND t.signal & 1 <> 0 FOR NO KEY UPDATE SKIP LOCKED
    ), cleared AS (
        UPDATE {schema}.holdfast_task AS t SET signal = t.signal & ~1
          FROM mailed AS m WHERE t.run = m.run AND t.unit = m.unit RETURNING t.run
    )
    SELECT array_agg(c.run) INTO v_mailed FROM cleared AS c;
    IF p_all THEN
        RETURN QUERY
            SELECT t.run, t.unit, t.epoch, t.signal | CASE WHEN t.unit = 0 AND t.run = ANY (v_mailed) THEN 1 ELSE 0 END
              FROM {schema}.holdfast_task AS t WHERE t.owner = p_owner;
    ELSE
        RETURN QUERY
            SELECT t.run, t.unit, t.epoch, t.signal FROM {schema}.holdfast_task AS t
             WHERE t.owner = p_owner AND t.signal <> 0 AND t.run <> ALL (coalesce(v_mailed, '{}'))
            UNION ALL
            SELECT t.run, t.unit, t.epoch, t.signal | 1 FROM {schema}.holdfast_task AS t
             WHERE t.run = ANY (v_mailed) AND t.unit = 0 AND t.owner = p_owner;
    END IF;
END $$;

CREATE FUNCTION {schema}.holdfast_heartbeat(p_now BIGINT, p_owner TEXT, p_lease_ms BIGINT)
RETURNS TABLE (now BIGINT, run BIGINT, unit BIGINT, epoch BIGINT, signal INTEGER) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
BEGIN
    INSERT INTO {schema}.holdfast_worker AS w (id, started_at, seen_at, lease_until)
    VALUES (p_owner, v_now, v_now, v_now + p_lease_ms)
    ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, lease_until = excluded.lease_until;
    RETURN QUERY SELECT v_now, s.* FROM {schema}.holdfast_signals(p_owner, true) AS s;
    RETURN QUERY SELECT v_now, NULL::bigint, NULL::bigint, NULL::bigint, NULL::int;
END $$;

-- Gives tasks that are held a lease of their own, from now on until they are given back or claimed again.
CREATE FUNCTION {schema}.holdfast_set_leases(
    p_now BIGINT, p_run BIGINT[], p_unit BIGINT[], p_owner TEXT[], p_epoch BIGINT[], p_lease_ms BIGINT[]
) RETURNS SETOF BOOLEAN LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_held BIGINT[];
BEGIN
    WITH held AS (
        SELECT a.ord, t.run, t.unit, a.lease_ms
          FROM unnest(p_run, p_unit, p_owner, p_epoch, p_lease_ms)
               WITH ORDINALITY AS a (run, unit, owner, epoch, lease_ms, ord)
          JOIN {schema}.holdfast_task AS t
            ON t.run = a.run AND t.unit = a.unit AND (t.owner = a.owner) IS TRUE AND t.epoch = a.epoch
         ORDER BY a.run, a.unit FOR NO KEY UPDATE OF t
    ), changed AS (
        UPDATE {schema}.holdfast_task AS t SET lease_ms = h.lease_ms, lease_until = v_now + h.lease_ms
          FROM held AS h WHERE t.run = h.run AND t.unit = h.unit RETURNING h.ord
    )
    SELECT array_agg(c.ord) INTO v_held FROM changed AS c;
    RETURN QUERY SELECT coalesce(n = ANY (v_held), false) FROM generate_series(1, cardinality(p_run)) AS n ORDER BY n;
END $$;

-- Frees tasks whose lease ran out: neither their claim nor their holder's last heartbeat is recent enough. Owners are
-- few and tasks many: one seek per owner, and then only what has run out. A unit is freed with its run locked, so that
-- a pause either finds it free or comes before.
CREATE FUNCTION {schema}.holdfast_reap(p_now BIGINT, p_by TEXT, p_max_losses INTEGER, p_suspect INTEGER)
RETURNS TABLE (run BIGINT, unit BIGINT, losses INTEGER, parked BOOLEAN) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_owner TEXT := '';
    v_seen_at BIGINT;
    v_alive BOOLEAN;
    v_expired BIGINT[] := '{}';
    v_units BIGINT[] := '{}';
    v_found BIGINT[];
    v_found_unit BIGINT[];
    v_one RECORD;
    v_task {schema}.holdfast_task;
    v_losses INTEGER;
    v_told BOOLEAN := false;
BEGIN
    LOOP
        SELECT t.owner INTO v_owner FROM {schema}.holdfast_task AS t
         WHERE t.owner IS NOT NULL AND t.owner > v_owner ORDER BY t.owner LIMIT 1;
        EXIT WHEN NOT FOUND;
        SELECT w.seen_at, w.lease_until > v_now INTO v_seen_at, v_alive
          FROM {schema}.holdfast_worker AS w WHERE w.id = v_owner;
        SELECT v_expired || array_agg(t.run), v_units || array_agg(t.unit) INTO v_expired, v_units
          FROM {schema}.holdfast_task AS t
         WHERE t.owner = v_owner AND t.lease_ms IS NOT NULL AND t.lease_until <= v_now
           AND coalesce(v_seen_at + t.lease_ms <= v_now, true);
        CONTINUE WHEN v_alive;
        SELECT array_agg(t.run), array_agg(t.unit) INTO v_found, v_found_unit FROM {schema}.holdfast_task AS t
         WHERE t.owner = v_owner AND t.lease_until <= v_now AND t.lease_ms IS NULL;
        v_expired := v_expired || v_found;
        v_units := v_units || v_found_unit;
    END LOOP;
    FOR v_one IN SELECT a.run, a.unit FROM unnest(v_expired, v_units) AS a (run, unit) ORDER BY a.run, a.unit LOOP
        IF v_one.unit > 0 THEN
            PERFORM FROM {schema}.holdfast_task AS t WHERE t.run = v_one.run AND t.unit = 0 FOR NO KEY UPDATE;
        END IF;
        SELECT * INTO v_task FROM {schema}.holdfast_task AS t
         WHERE t.run = v_one.run AND t.unit = v_one.unit AND t.lease_until <= v_now FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        v_told := true;
        v_losses := v_task.losses + 1;
        UPDATE {schema}.holdfast_task AS t
           SET owner = NULL, lease_until = NULL, run_at = v_now, kind = 1, losses = v_losses, lost = true,
               bucket = CASE WHEN v_losses >= p_suspect THEN 2 ELSE 0 END, signal = 0
         WHERE t.run = v_one.run AND t.unit = v_one.unit;
        IF v_losses >= p_max_losses THEN
            PERFORM {schema}.holdfast_set_paused(v_now, v_one.run, convert_to('parked: its worker died '
                || CASE WHEN v_losses = 1 THEN 'once' ELSE v_losses || ' times in a row' END
                || '; resume to try again', 'UTF8'));
        ELSIF v_task.signal & 2 <> 0 THEN  -- asked for while it was held, and nobody holds it now
            PERFORM {schema}.holdfast_set_paused(v_now, v_one.run, NULL);
        ELSE
            PERFORM {schema}.holdfast_still_paused(v_one.run, v_one.unit);
        END IF;
        RETURN QUERY SELECT v_one.run, v_one.unit, v_losses, v_losses >= p_max_losses;
    END LOOP;
    IF v_told THEN
        PERFORM pg_notify('{channel}', p_by);
    END IF;
END $$;

CREATE FUNCTION {schema}.holdfast_release(
    p_now BIGINT, p_by TEXT, p_run BIGINT[], p_unit BIGINT[], p_owner TEXT[], p_epoch BIGINT[]
) RETURNS BIGINT LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_one RECORD;
    v_count BIGINT := 0;
BEGIN
    FOR v_one IN
        SELECT DISTINCT a.run, a.unit, a.owner, a.epoch
          FROM unnest(p_run, p_unit, p_owner, p_epoch) AS a (run, unit, owner, epoch) ORDER BY a.run, a.unit
    LOOP
        IF v_one.unit > 0 THEN  -- so that a pause either finds it free or comes before
            PERFORM FROM {schema}.holdfast_task AS t WHERE t.run = v_one.run AND t.unit = 0 FOR NO KEY UPDATE;
        END IF;
        PERFORM 1 FROM {schema}.holdfast_task AS t
          WHERE t.run = v_one.run AND t.unit = v_one.unit AND (t.owner = v_one.owner) IS TRUE AND t.epoch = v_one.epoch
            FOR NO KEY UPDATE;
        CONTINUE WHEN NOT FOUND;
        v_count := v_count + 1;
        IF EXISTS (SELECT FROM {schema}.holdfast_task AS t
                    WHERE t.run = v_one.run AND t.unit = v_one.unit AND t.signal & 2 <> 0) THEN
            PERFORM {schema}.holdfast_set_paused(v_now, v_one.run, NULL);
        ELSE
            -- A loss that no commit has followed yet is still news to the next holder.
            UPDATE {schema}.holdfast_task AS t
               SET owner = NULL, lease_until = NULL, run_at = v_now, lost = t.losses > 0, signal = 0
             WHERE t.run = v_one.run AND t.unit = v_one.unit;
            PERFORM {schema}.holdfast_still_paused(v_one.run, v_one.unit);
        END IF;
    END LOOP;
    IF v_count > 0 THEN
        PERFORM pg_notify('{channel}', p_by);
    END IF;
    RETURN v_count;
END $$;

-- Heartbeats, signals, leases, and tasks that are lost or released.

-- Tasks of an owner with their signals; p_all false: only tasks with a signal. Reading clears the EVENTS signal, except
-- of tasks that are locked: a heartbeat must not wait for a lock.
CREATE OR REPLACE FUNCTION {schema}.holdfast_signals(p_owner TEXT, p_all BOOLEAN)
RETURNS TABLE (run BIGINT, unit BIGINT, epoch BIGINT, signal INTEGER) LANGUAGE plpgsql
{planner.nested_loops} AS $$
#variable_conflict use_column
DECLARE
    v_signalled BIGINT[];
BEGIN
    WITH signalled AS (
        SELECT t.run, t.unit FROM {schema}.holdfast_task AS t
         WHERE t.owner = p_owner AND t.signal <> 0 AND t.signal & {Signal.EVENTS} <> 0 FOR NO KEY UPDATE SKIP LOCKED
    ), cleared AS (
        UPDATE {schema}.holdfast_task AS t SET signal = t.signal & ~{Signal.EVENTS}
          FROM signalled AS m WHERE t.run = m.run AND t.unit = m.unit RETURNING t.run
    )
    SELECT array_agg(c.run) INTO v_signalled FROM cleared AS c;
    IF p_all THEN
        RETURN QUERY
            SELECT t.run, t.unit, t.epoch,
                   t.signal | CASE WHEN t.unit = 0 AND t.run = ANY (v_signalled) THEN {Signal.EVENTS}
                                   ELSE {Signal.NONE} END
              FROM {schema}.holdfast_task AS t WHERE t.owner = p_owner;
    ELSE
        RETURN QUERY
            SELECT t.run, t.unit, t.epoch, t.signal FROM {schema}.holdfast_task AS t
             WHERE t.owner = p_owner AND t.signal <> 0 AND t.run <> ALL (coalesce(v_signalled, '{}'))
            UNION ALL
            SELECT t.run, t.unit, t.epoch, t.signal | {Signal.EVENTS} FROM {schema}.holdfast_task AS t
             WHERE t.run = ANY (v_signalled) AND t.unit = 0 AND t.owner = p_owner;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION {schema}.holdfast_heartbeat(p_now BIGINT, p_owner TEXT, p_lease_ms BIGINT)
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

-- Give owned tasks leases of their own, from now until they are released or claimed again. Returns for each whether the
-- fence held.
CREATE OR REPLACE FUNCTION {schema}.holdfast_set_leases(
    p_now BIGINT, p_run BIGINT[], p_unit BIGINT[], p_owner TEXT[], p_epoch BIGINT[], p_lease_ms BIGINT[]
) RETURNS SETOF BOOLEAN LANGUAGE plpgsql
{planner.nested_loops} AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_changed BIGINT[];
BEGIN
    WITH owned AS (
        SELECT a.ord, t.run, t.unit, a.lease_ms
          FROM unnest(p_run, p_unit, p_owner, p_epoch, p_lease_ms)
               WITH ORDINALITY AS a (run, unit, owner, epoch, lease_ms, ord)
          JOIN {schema}.holdfast_task AS t
            ON t.run = a.run AND t.unit = a.unit AND (t.owner = a.owner) IS TRUE AND t.epoch = a.epoch
         ORDER BY a.run, a.unit FOR NO KEY UPDATE OF t
    ), changed AS (
        UPDATE {schema}.holdfast_task AS t SET lease_ms = h.lease_ms, lease_until = v_now + h.lease_ms
          FROM owned AS h WHERE t.run = h.run AND t.unit = h.unit RETURNING h.ord
    )
    SELECT array_agg(c.ord) INTO v_changed FROM changed AS c;
    RETURN QUERY
        SELECT coalesce(n = ANY (v_changed), false) FROM generate_series(1, cardinality(p_run)) AS n ORDER BY n;
END $$;

-- Free tasks whose lease expired: both the claim and the owner's last heartbeat are too old. There are few owners and
-- many tasks, so this seeks each owner once and then reads only the expired tasks. A unit is freed with the task of its
-- run locked, so that a concurrent pause either finds it free or comes first.
CREATE OR REPLACE FUNCTION {schema}.holdfast_reap(
    p_now BIGINT, p_store TEXT, p_max_losses INTEGER, p_suspect_losses INTEGER
) RETURNS TABLE (run BIGINT, unit BIGINT, losses INTEGER, parked BOOLEAN) LANGUAGE plpgsql
{planner.ordered_indexes} AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_owner TEXT := '';
    v_seen_at BIGINT;
    v_alive BOOLEAN;
    v_expired_runs BIGINT[] := '{}';
    v_expired_units BIGINT[] := '{}';
    v_runs BIGINT[];
    v_units BIGINT[];
    v_lost RECORD;
    v_task {schema}.holdfast_task;
    v_losses INTEGER;
    v_notify BOOLEAN := false;
BEGIN
    LOOP
        SELECT t.owner INTO v_owner FROM {schema}.holdfast_task AS t
         WHERE t.owner IS NOT NULL AND t.owner > v_owner ORDER BY t.owner LIMIT 1;
        EXIT WHEN NOT FOUND;
        SELECT w.seen_at, w.lease_until > v_now INTO v_seen_at, v_alive
          FROM {schema}.holdfast_worker AS w WHERE w.id = v_owner;
        SELECT v_expired_runs || array_agg(t.run), v_expired_units || array_agg(t.unit)
          INTO v_expired_runs, v_expired_units
          FROM {schema}.holdfast_task AS t
         WHERE t.owner = v_owner AND t.lease_ms IS NOT NULL AND t.lease_until <= v_now
           AND coalesce(v_seen_at + t.lease_ms <= v_now, true);
        CONTINUE WHEN v_alive;
        SELECT array_agg(t.run), array_agg(t.unit) INTO v_runs, v_units FROM {schema}.holdfast_task AS t
         WHERE t.owner = v_owner AND t.lease_until <= v_now AND t.lease_ms IS NULL;
        v_expired_runs := v_expired_runs || v_runs;
        v_expired_units := v_expired_units || v_units;
    END LOOP;
    FOR v_lost IN
        SELECT a.run, a.unit FROM unnest(v_expired_runs, v_expired_units) AS a (run, unit) ORDER BY a.run, a.unit
    LOOP
        IF v_lost.unit > 0 THEN
            PERFORM FROM {schema}.holdfast_task AS t WHERE t.run = v_lost.run AND t.unit = 0 FOR NO KEY UPDATE;
        END IF;
        SELECT * INTO v_task FROM {schema}.holdfast_task AS t
         WHERE t.run = v_lost.run AND t.unit = v_lost.unit AND t.lease_until <= v_now FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        v_notify := true;
        v_losses := v_task.losses + 1;
        UPDATE {schema}.holdfast_task AS t
           SET owner = NULL, lease_until = NULL, run_at = v_now, kind = {TaskKind.RETRY}, losses = v_losses,
               lost = true,
               bucket = CASE WHEN v_losses >= p_suspect_losses THEN {Bucket.SUSPECT} ELSE {Bucket.CONTINUING} END,
               signal = 0
         WHERE t.run = v_lost.run AND t.unit = v_lost.unit;
        IF v_losses >= p_max_losses THEN
            PERFORM {schema}.holdfast_set_paused(v_now, v_lost.run, convert_to('parked: the lease of its task expired '
                || CASE WHEN v_losses = 1 THEN 'once' ELSE v_losses || ' times in a row' END
                || '; resume to try again', 'UTF8'));
        ELSIF v_task.signal & {Signal.PAUSE} <> 0 THEN  -- a pause was requested while the task was owned
            PERFORM {schema}.holdfast_set_paused(v_now, v_lost.run, NULL);
        ELSE
            PERFORM {schema}.holdfast_keep_paused(v_lost.run, v_lost.unit);
        END IF;
        RETURN QUERY SELECT v_lost.run, v_lost.unit, v_losses, v_losses >= p_max_losses;
    END LOOP;
    IF v_notify THEN
        PERFORM pg_notify('{channel}', p_store);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION {schema}.holdfast_release(
    p_now BIGINT, p_store TEXT, p_run BIGINT[], p_unit BIGINT[], p_owner TEXT[], p_epoch BIGINT[]
) RETURNS BIGINT LANGUAGE plpgsql
{planner.nested_loops} AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_task RECORD;
    v_count BIGINT := 0;
BEGIN
    FOR v_task IN
        SELECT DISTINCT a.run, a.unit, a.owner, a.epoch
          FROM unnest(p_run, p_unit, p_owner, p_epoch) AS a (run, unit, owner, epoch) ORDER BY a.run, a.unit
    LOOP
        IF v_task.unit > 0 THEN  -- a concurrent pause either finds the unit free or comes first
            PERFORM FROM {schema}.holdfast_task AS t WHERE t.run = v_task.run AND t.unit = 0 FOR NO KEY UPDATE;
        END IF;
        PERFORM 1 FROM {schema}.holdfast_task AS t
          WHERE t.run = v_task.run AND t.unit = v_task.unit AND (t.owner = v_task.owner) IS TRUE
            AND t.epoch = v_task.epoch
            FOR NO KEY UPDATE;
        CONTINUE WHEN NOT FOUND;
        v_count := v_count + 1;
        IF EXISTS (SELECT FROM {schema}.holdfast_task AS t
                    WHERE t.run = v_task.run AND t.unit = v_task.unit AND t.signal & {Signal.PAUSE} <> 0) THEN
            PERFORM {schema}.holdfast_set_paused(v_now, v_task.run, NULL);
        ELSE
            -- The next owner must learn of a loss that no commit has followed yet.
            UPDATE {schema}.holdfast_task AS t
               SET owner = NULL, lease_until = NULL, run_at = v_now, lost = t.losses > 0, signal = 0
             WHERE t.run = v_task.run AND t.unit = v_task.unit;
            PERFORM {schema}.holdfast_keep_paused(v_task.run, v_task.unit);
        END IF;
    END LOOP;
    IF v_count > 0 THEN
        PERFORM pg_notify('{channel}', p_store);
    END IF;
    RETURN v_count;
END $$;

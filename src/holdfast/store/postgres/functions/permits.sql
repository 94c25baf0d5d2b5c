-- Permits: their return, and the groups in which they wait (docs/architecture.md, "Flow control"). permit_grants.sql has
-- the grants, permit_exchange.sql the requests.
--
-- All changes of permits, groups and the use of limits are made under one lock, which is taken after the locks of tasks
-- and runs. Under the lock a transaction locks tasks only if it need not wait (SKIP LOCKED), so there is no deadlock.
--
-- A function changes each row with one statement for all permits: the dead versions of a row stay until the transaction
-- ends, and each of its reads passes them.

CREATE OR REPLACE FUNCTION {schema}.holdfast_lock_permits() RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(hashtextextended('holdfast permits of {schema}', 0))
$$;

-- Notify all stores, this one included, if a limit is freed: their workers exchange permits.
CREATE OR REPLACE FUNCTION {schema}.holdfast_notify_freed() RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('{channel}', 'permits') WHERE EXISTS (SELECT FROM {schema}.holdfast_limit_use WHERE freed)
$$;

-- True if a task has permits. The lock of the task, which the caller holds, suffices: permits are only added to a task
-- that is locked. Most tasks that end have returned their permits, and need not wait for the lock of permits.
CREATE OR REPLACE FUNCTION {schema}.holdfast_has_permits(p_run BIGINT, p_unit BIGINT) RETURNS BOOLEAN LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
    RETURN EXISTS (SELECT FROM {schema}.holdfast_permit WHERE run = p_run AND unit = p_unit);
END $$;

-- The ownership of a task has ended: its permits are deleted, unless they were parked under this ownership or are held
-- until the end of the run.
CREATE OR REPLACE FUNCTION {schema}.holdfast_task_released() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF {schema}.holdfast_has_permits(OLD.run, OLD.unit) THEN
        PERFORM {schema}.holdfast_lock_permits();
        DELETE FROM {schema}.holdfast_permit
         WHERE run = OLD.run AND unit = OLD.unit AND parked IS DISTINCT FROM OLD.epoch
           AND NOT (until_end AND state = {PermitState.HELD});
        UPDATE {schema}.holdfast_permit SET owner = NULL
         WHERE run = OLD.run AND unit = OLD.unit AND parked = OLD.epoch AND owner IS NOT NULL;
        PERFORM {schema}.holdfast_notify_freed();
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION {schema}.holdfast_task_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF {schema}.holdfast_has_permits(OLD.run, OLD.unit) THEN
        PERFORM {schema}.holdfast_lock_permits();
        DELETE FROM {schema}.holdfast_permit WHERE run = OLD.run AND unit = OLD.unit;
        PERFORM {schema}.holdfast_notify_freed();
    END IF;
    RETURN NULL;
END $$;

-- Return the permits of runs that a batch of commits has ended, by one statement; holdfast_task_deleted would return them
-- run by run, and then finds none. Notifies nobody: the commit notifies other stores of the ends, and the worker whose
-- runs have ended exchanges permits at the end of their turns.
CREATE OR REPLACE FUNCTION {schema}.holdfast_return_permits_of(p_runs BIGINT[], p_next INTEGER[]) RETURNS BIGINT
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_ended BIGINT[] := ARRAY(SELECT a.run FROM unnest(p_runs, p_next) AS a (run, next) WHERE a.next = {Next.FINISH});
    v_count BIGINT := 0;
BEGIN
    IF EXISTS (SELECT FROM {schema}.holdfast_permit WHERE run = ANY (v_ended)) THEN
        PERFORM {schema}.holdfast_lock_permits();
        DELETE FROM {schema}.holdfast_permit WHERE run = ANY (v_ended);
        GET DIAGNOSTICS v_count = ROW_COUNT;
    END IF;
    RETURN v_count;
END $$;

-- A paused run neither waits for permits nor keeps granted ones.
CREATE OR REPLACE FUNCTION {schema}.holdfast_run_paused() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM {schema}.holdfast_permit WHERE run = NEW.id AND state < {PermitState.HELD}) THEN
        PERFORM {schema}.holdfast_lock_permits();
        DELETE FROM {schema}.holdfast_permit WHERE run = NEW.id AND state < {PermitState.HELD};
        PERFORM {schema}.holdfast_notify_freed();
    END IF;
    RETURN NULL;
END $$;

-- Keeps the counters of a statement that deletes permits: returned permits free their limits, withdrawn ones leave their
-- groups. A limit at which no group waits is not marked as freed, because there is nothing to grant.
CREATE OR REPLACE FUNCTION {schema}.holdfast_permits_deleted() RETURNS trigger LANGUAGE plpgsql
{planner.nested_loops} AS $$
DECLARE
    v_groups BIGINT[];
    v_waited BOOLEAN[];
BEGIN
    SELECT array_agg(grp), array_agg(state = {PermitState.WAITING}) INTO v_groups, v_waited FROM deleted;
    IF v_groups IS NULL THEN
        RETURN NULL;
    ELSIF true = ANY (v_waited) THEN
        PERFORM {schema}.holdfast_leave_groups(v_groups, v_waited);
    END IF;
    UPDATE {schema}.holdfast_limit_use AS u
       SET used = u.used - r.count,
           freed = u.freed OR EXISTS (SELECT FROM {schema}.holdfast_permit_group AS g
                                       WHERE g.waiting > 0 AND g.name = u.name AND g.key = u.key)
      FROM (SELECT l.name, l.key, sum(d.count)::bigint AS count
              FROM (SELECT x.grp, count(*) AS count FROM unnest(v_groups, v_waited) AS x (grp, waited)
                     WHERE NOT x.waited GROUP BY x.grp) AS d
              JOIN {schema}.holdfast_permit_group AS g ON g.id = d.grp
             CROSS JOIN LATERAL unnest(g.names, g.keys) AS l (name, key)
             GROUP BY l.name, l.key) AS r
     WHERE u.name = r.name AND u.key = r.key;
    RETURN NULL;
END $$;

-- Subtract permits from the groups in which they waited, and set the first permit that still waits. p_groups: the group of
-- each permit. p_leaves: false for a permit that stays.
CREATE OR REPLACE FUNCTION {schema}.holdfast_leave_groups(p_groups BIGINT[], p_leaves BOOLEAN[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.holdfast_permit_group AS g
       SET waiting = g.waiting - d.count, head = coalesce(d.id, g.head),
           head_priority = coalesce(d.priority, g.head_priority),
           pass = CASE WHEN g.fair IS NULL THEN coalesce(d.tag, g.pass) ELSE g.pass END
      FROM (SELECT l.grp, l.count, p.id, p.priority, p.tag FROM (
                    SELECT x.grp, count(*) AS count FROM unnest(p_groups, p_leaves) AS x (grp, leaves)
                     WHERE x.leaves GROUP BY x.grp) AS l
              LEFT JOIN LATERAL (
                    SELECT id, priority, tag FROM {schema}.holdfast_permit
                     WHERE grp = l.grp AND state = {PermitState.WAITING}
                     ORDER BY priority, id LIMIT 1) AS p ON true) AS d
     WHERE g.id = d.grp;
END $$;

CREATE OR REPLACE FUNCTION {schema}.holdfast_fair_limit(p_names TEXT[]) RETURNS INTEGER LANGUAGE sql STABLE AS $$
    SELECT min(n.ord)::int FROM unnest(p_names) WITH ORDINALITY AS n (name, ord)
     WHERE (SELECT l.fair FROM {schema}.holdfast_limit AS l WHERE l.name = n.name)
$$;

-- The limits of a request, a JSON list of [name, key], as arrays.
CREATE OR REPLACE FUNCTION {schema}.holdfast_limits_of(p_limits TEXT) RETURNS TABLE (names TEXT[], keys TEXT[])
LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(l.pair ->> 0 ORDER BY l.ord), array_agg(l.pair ->> 1 ORDER BY l.ord)
      FROM jsonb_array_elements(p_limits::jsonb) WITH ORDINALITY AS l (pair, ord)
$$;

-- The groups of requests; NULL for a request whose group does not exist.
CREATE OR REPLACE FUNCTION {schema}.holdfast_find_groups(p_limits TEXT[], p_needs_tokens BOOLEAN[]) RETURNS BIGINT[]
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT array_agg(g.id ORDER BY r.ord)
              FROM (SELECT a.limits, a.needs_tokens, array_agg(a.ord) AS requests
                      FROM unnest(p_limits, p_needs_tokens) WITH ORDINALITY AS a (limits, needs_tokens, ord)
                     GROUP BY a.limits, a.needs_tokens) AS s
             CROSS JOIN LATERAL {schema}.holdfast_limits_of(s.limits) AS l
              LEFT JOIN {schema}.holdfast_permit_group AS g
                ON g.names = l.names AND g.keys = l.keys AND g.needs_tokens = s.needs_tokens
             CROSS JOIN LATERAL unnest(s.requests) AS r (ord));
END $$;

-- The groups of requests. Groups that do not exist are added.
CREATE OR REPLACE FUNCTION {schema}.holdfast_groups_of(p_now BIGINT, p_limits TEXT[], p_needs_tokens BOOLEAN[])
RETURNS BIGINT[] LANGUAGE plpgsql AS $$
DECLARE
    v_groups BIGINT[] := {schema}.holdfast_find_groups(p_limits, p_needs_tokens);
    v_added BIGINT;
BEGIN
    IF array_position(v_groups, NULL) IS NULL THEN
        RETURN v_groups;
    END IF;
    INSERT INTO {schema}.holdfast_permit_group (names, keys, needs_tokens, fair)
    SELECT l.names, l.keys, s.needs_tokens, {schema}.holdfast_fair_limit(l.names)
      FROM (SELECT DISTINCT a.limits, a.needs_tokens
              FROM unnest(p_limits, p_needs_tokens, v_groups) AS a (limits, needs_tokens, grp)
             WHERE a.grp IS NULL) AS s
     CROSS JOIN LATERAL {schema}.holdfast_limits_of(s.limits) AS l;
    GET DIAGNOSTICS v_added = ROW_COUNT;
    v_groups := {schema}.holdfast_find_groups(p_limits, p_needs_tokens);
    PERFORM {schema}.holdfast_forget_groups(p_now, v_groups, v_added);
    RETURN v_groups;
END $$;

-- Delete up to four idle groups for each of p_added new ones, and the use of their keys, so that keys that are used once
-- leave no rows. p_besides: groups that the caller is about to use.
CREATE OR REPLACE FUNCTION {schema}.holdfast_forget_groups(p_now BIGINT, p_besides BIGINT[], p_added BIGINT)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_last BIGINT := (SELECT max(id) FROM {schema}.holdfast_permit_group);
BEGIN
    WITH idle AS (
        DELETE FROM {schema}.holdfast_permit_group AS g
         WHERE g.id IN (SELECT c.id FROM {schema}.holdfast_permit_group AS c
                         WHERE c.id >= p_now * 7919 % v_last AND c.id <> ALL (p_besides)
                         ORDER BY c.id LIMIT 4 * p_added)
           AND g.waiting = 0 AND EXISTS (SELECT FROM unnest(g.keys) AS l (key) WHERE l.key <> '')
           AND NOT EXISTS (SELECT FROM unnest(g.names, g.keys) AS l (name, key)
                             JOIN {schema}.holdfast_limit_use AS u ON u.name = l.name AND u.key = l.key
                            WHERE u.key <> ''
                              AND (u.used > 0 OR u.freed OR u.ready_at IS NOT NULL OR u.tat > p_now * 1000))
        RETURNING g.names, g.keys
    )
    DELETE FROM {schema}.holdfast_limit_use AS u USING idle, unnest(idle.names, idle.keys) AS l (name, key)
     WHERE u.name = l.name AND u.key = l.key AND u.key <> '';
END $$;

-- Tasks of a queue without an owner that wait for a permit, or have one that no worker uses.
CREATE OR REPLACE FUNCTION {schema}.holdfast_waiting_tasks(p_queue TEXT) RETURNS TABLE (run BIGINT, unit BIGINT)
LANGUAGE sql STABLE AS $$
    SELECT DISTINCT t.run, t.unit FROM {schema}.holdfast_permit AS p
      JOIN {schema}.holdfast_task AS t ON t.run = p.run AND t.unit = p.unit
     WHERE p.state < {PermitState.HELD} AND t.owner IS NULL AND t.queue = p_queue
$$;

-- Withdraw the permits of a queue's tasks that no worker owns. The tasks are due, and request permits when claimed.
CREATE OR REPLACE FUNCTION {schema}.holdfast_withdraw_queue(p_now BIGINT, p_queue TEXT) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_runs BIGINT[];
    v_units BIGINT[];
BEGIN
    PERFORM FROM {schema}.holdfast_waiting_tasks(p_queue) AS w
      JOIN {schema}.holdfast_task AS t ON t.run = w.run AND t.unit = w.unit
      ORDER BY t.run, t.unit FOR NO KEY UPDATE OF t;
    PERFORM {schema}.holdfast_lock_permits();
    -- Also tasks that were parked since. A task that is locked by now is being claimed, and requests its permit again.
    SELECT array_agg(locked.run), array_agg(locked.unit) INTO v_runs, v_units
      FROM (SELECT t.run, t.unit FROM {schema}.holdfast_waiting_tasks(p_queue) AS w
              JOIN {schema}.holdfast_task AS t ON t.run = w.run AND t.unit = w.unit
             WHERE t.owner IS NULL FOR NO KEY UPDATE OF t SKIP LOCKED) AS locked;
    UPDATE {schema}.holdfast_task AS t SET run_at = p_now FROM unnest(v_runs, v_units) AS w (run, unit)
     WHERE t.run = w.run AND t.unit = w.unit;
    DELETE FROM {schema}.holdfast_permit AS p USING unnest(v_runs, v_units) AS w (run, unit)
     WHERE p.run = w.run AND p.unit = w.unit AND p.state < {PermitState.HELD};
    PERFORM {schema}.holdfast_notify_freed();
END $$;

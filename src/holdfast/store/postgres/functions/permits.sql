-- Permits: requests, returns and grants (docs/architecture.md, "Flow control").
--
-- All changes of permits, groups and the use of limits are made under one lock, which is taken after the locks of tasks
-- and runs. Under the lock a transaction locks tasks only if it need not wait (SKIP LOCKED), so there is no deadlock.

CREATE OR REPLACE FUNCTION {schema}.holdfast_lock_permits() RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(hashtextextended('holdfast permits of {schema}', 0))
$$;

-- Notify all stores, this one included, if a limit is freed: their workers exchange permits.
CREATE OR REPLACE FUNCTION {schema}.holdfast_notify_freed() RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('{channel}', 'permits') WHERE EXISTS (SELECT FROM {schema}.holdfast_limit_use WHERE freed)
$$;

-- The ownership of a task has ended: its permits are deleted, unless they were parked under this ownership or are held
-- until the end of the run.
CREATE OR REPLACE FUNCTION {schema}.holdfast_task_released() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.holdfast_lock_permits();
    DELETE FROM {schema}.holdfast_permit
     WHERE run = OLD.run AND unit = OLD.unit AND parked IS DISTINCT FROM OLD.epoch
       AND NOT (until_end AND state = {PermitState.HELD});
    UPDATE {schema}.holdfast_permit SET owner = NULL
     WHERE run = OLD.run AND unit = OLD.unit AND parked = OLD.epoch;
    PERFORM {schema}.holdfast_notify_freed();
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION {schema}.holdfast_task_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.holdfast_lock_permits();
    DELETE FROM {schema}.holdfast_permit WHERE run = OLD.run AND unit = OLD.unit;
    PERFORM {schema}.holdfast_notify_freed();
    RETURN NULL;
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

-- Keeps the counters: the limits of a returned permit are freed; a withdrawn permit leaves its group.
CREATE OR REPLACE FUNCTION {schema}.holdfast_permit_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_group {schema}.holdfast_permit_group;
BEGIN
    IF OLD.state = {PermitState.WAITING} THEN
        UPDATE {schema}.holdfast_permit_group SET waiting = waiting - 1 WHERE id = OLD.grp RETURNING * INTO v_group;
        IF v_group.head = OLD.id AND v_group.waiting > 0 THEN
            PERFORM {schema}.holdfast_set_head(OLD.grp);
        END IF;
    ELSE
        SELECT * INTO v_group FROM {schema}.holdfast_permit_group WHERE id = OLD.grp;
        UPDATE {schema}.holdfast_limit_use AS u SET used = u.used - 1, freed = true
          FROM unnest(v_group.names, v_group.keys) AS l (name, key) WHERE u.name = l.name AND u.key = l.key;
    END IF;
    RETURN NULL;
END $$;

-- Set the first waiting permit of a group that has one.
CREATE OR REPLACE FUNCTION {schema}.holdfast_set_head(p_group BIGINT) RETURNS void LANGUAGE sql AS $$
    UPDATE {schema}.holdfast_permit_group AS g
       SET head = p.id, head_priority = p.priority, pass = CASE WHEN g.fair IS NULL THEN p.tag ELSE g.pass END
      FROM (SELECT id, priority, tag FROM {schema}.holdfast_permit
             WHERE grp = p_group AND state = {PermitState.WAITING} ORDER BY priority, id LIMIT 1) AS p
     WHERE g.id = p_group
$$;

-- The room of a limit's key. tat: the theoretical arrival time after one more permit. ready_at: when the rate has room;
-- NULL if it has, or if all permits are in use. p_needs_tokens: false for a run that continues, which has taken the tokens of
-- its rates when it began.
CREATE OR REPLACE FUNCTION {schema}.holdfast_room(
    p_now BIGINT, p_name TEXT, p_key TEXT, p_needs_tokens BOOLEAN,
    OUT free BOOLEAN, OUT ready_at BIGINT, OUT tat BIGINT, OUT pass DOUBLE PRECISION, OUT virtual DOUBLE PRECISION
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_limit {schema}.holdfast_limit;
    v_used BIGINT;
    v_full BOOLEAN;
    v_interval BIGINT;
    v_latest BIGINT;
    v_early BIGINT;
BEGIN
    SELECT * INTO v_limit FROM {schema}.holdfast_limit AS l WHERE l.name = p_name;
    SELECT u.used, u.tat, u.pass, u.virtual INTO v_used, tat, pass, virtual
      FROM {schema}.holdfast_limit_use AS u WHERE u.name = p_name AND u.key = p_key;
    tat := coalesce(tat, 0);
    pass := coalesce(pass, 0);
    virtual := coalesce(virtual, 0);
    v_full := coalesce(v_used >= v_limit.concurrency, v_limit.concurrency <= 0, false);
    IF v_limit.rate_count IS NULL OR NOT p_needs_tokens THEN
        free := NOT v_full;
        RETURN;
    END IF;
    v_interval := v_limit.rate_ms * 1000 / v_limit.rate_count;
    v_latest := p_now * 1000 + v_limit.burst * v_interval;
    IF tat > v_latest THEN  -- of a slower rate, before a change, or of a clock that was set back: the rate is used up
        UPDATE {schema}.holdfast_limit_use AS u SET tat = v_latest WHERE u.name = p_name AND u.key = p_key;
    END IF;
    tat := greatest(least(tat, v_latest), p_now * 1000) + v_interval;
    v_early := tat - v_latest;
    free := NOT v_full AND v_early <= 0;
    IF NOT v_full AND v_early > 0 THEN
        ready_at := p_now + (v_early + 999) / 1000;
    END IF;
END $$;

-- The position of the first limit without room; 0: all have room. If a rate has no room, note when it has.
CREATE OR REPLACE FUNCTION {schema}.holdfast_blocking(
    p_now BIGINT, p_names TEXT[], p_keys TEXT[], p_needs_tokens BOOLEAN
) RETURNS INTEGER LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_room RECORD;
BEGIN
    FOR i IN 1..cardinality(p_names) LOOP
        v_room := {schema}.holdfast_room(p_now, p_names[i], p_keys[i], p_needs_tokens);
        IF NOT v_room.free THEN
            IF v_room.ready_at IS NOT NULL THEN
                INSERT INTO {schema}.holdfast_limit_use AS u (name, key, ready_at)
                VALUES (p_names[i], p_keys[i], v_room.ready_at)
                ON CONFLICT (name, key) DO UPDATE SET ready_at = excluded.ready_at;
            END IF;
            RETURN i;
        END IF;
    END LOOP;
    RETURN 0;
END $$;

CREATE OR REPLACE FUNCTION {schema}.holdfast_fair_limit(p_names TEXT[]) RETURNS INTEGER LANGUAGE sql STABLE AS $$
    SELECT min(n.ord)::int FROM unnest(p_names) WITH ORDINALITY AS n (name, ord)
     WHERE (SELECT l.fair FROM {schema}.holdfast_limit AS l WHERE l.name = n.name)
$$;

-- Count permits under their limits. The pass of their fair key increases by the inverse of the key's weight.
CREATE OR REPLACE FUNCTION {schema}.holdfast_take_permits(
    p_now BIGINT, p_names TEXT[], p_keys TEXT[], p_needs_tokens BOOLEAN, p_granted_pass DOUBLE PRECISION, p_count BIGINT
) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_fair INTEGER := {schema}.holdfast_fair_limit(p_names);
    v_room RECORD;
    v_pass DOUBLE PRECISION;
    v_virtual DOUBLE PRECISION;
    v_weight DOUBLE PRECISION;
BEGIN
    FOR i IN 1..cardinality(p_names) LOOP
        v_room := {schema}.holdfast_room(p_now, p_names[i], p_keys[i], p_needs_tokens);
        v_pass := v_room.pass;
        v_virtual := greatest(v_room.virtual, p_granted_pass);
        IF i = v_fair THEN
            v_virtual := greatest(v_pass, v_virtual);
            SELECT coalesce((weights::jsonb ->> p_keys[i])::double precision, 1) INTO v_weight
              FROM {schema}.holdfast_limit WHERE name = p_names[i];
            v_pass := v_virtual + 1 / v_weight;
            UPDATE {schema}.holdfast_permit_group SET pass = v_pass
             WHERE names[fair] = p_names[i] AND keys[fair] = p_keys[i] AND waiting > 0;
        END IF;
        INSERT INTO {schema}.holdfast_limit_use AS u (name, key, used, tat, pass, virtual)
        VALUES (p_names[i], p_keys[i], p_count, v_room.tat, v_pass, v_virtual)
        ON CONFLICT (name, key) DO UPDATE
           SET used = u.used + p_count, tat = excluded.tat, pass = excluded.pass, virtual = excluded.virtual;
    END LOOP;
END $$;

-- How many permits of a group can be granted at once, 1 to p_wanted; one has room. 1 if each permit changes the order of
-- the next ones (fair limits), or takes a token.
CREATE OR REPLACE FUNCTION {schema}.holdfast_room_for(
    p_names TEXT[], p_keys TEXT[], p_wanted BIGINT, p_needs_tokens BOOLEAN
) RETURNS BIGINT LANGUAGE sql STABLE AS $$
    SELECT greatest(1, least(p_wanted, min(
               CASE WHEN l.fair OR (p_needs_tokens AND l.rate_count IS NOT NULL) THEN 1
                    ELSE l.concurrency - coalesce(u.used, 0) END)))
      FROM unnest(p_names, p_keys) AS n (name, key)
      LEFT JOIN {schema}.holdfast_limit AS l ON l.name = n.name
      LEFT JOIN {schema}.holdfast_limit_use AS u ON u.name = n.name AND u.key = n.key
$$;

-- Grant waiting permits for which freed limits, and rates that are ready, have room. Limits with keys come first; a group
-- that could be granted competes at the last of its limits that is settled.
CREATE OR REPLACE FUNCTION {schema}.holdfast_settle_permits(p_now BIGINT) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_names TEXT[];
    v_keys TEXT[];
    v_ready BIGINT;
BEGIN
    SELECT array_agg(u.name ORDER BY u.key = '', u.name, u.key), array_agg(u.key ORDER BY u.key = '', u.name, u.key)
      INTO v_names, v_keys
      FROM (SELECT name, key FROM {schema}.holdfast_limit_use WHERE freed
            UNION SELECT name, key FROM {schema}.holdfast_limit_use
                   WHERE ready_at IS NOT NULL AND ready_at <= p_now) AS u;
    FOR i IN 1..coalesce(cardinality(v_names), 0) LOOP
        v_ready := {schema}.holdfast_grant_permits(p_now, v_names, v_keys, i);
        UPDATE {schema}.holdfast_limit_use SET freed = false, ready_at = v_ready
         WHERE name = v_names[i] AND key = v_keys[i];
    END LOOP;
END $$;

-- Grant permits of the groups that wait at limit p_at of the freed limits. Returns when the rate of the limit has room,
-- if groups wait for that.
CREATE OR REPLACE FUNCTION {schema}.holdfast_grant_permits(
    p_now BIGINT, p_names TEXT[], p_keys TEXT[], p_at INTEGER
) RETURNS BIGINT LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_group {schema}.holdfast_permit_group;
    v_room RECORD;
    v_elsewhere INTEGER;
    v_count BIGINT;
BEGIN
    LOOP
        SELECT * INTO v_group FROM {schema}.holdfast_permit_group
         WHERE waiting > 0 AND name = p_names[p_at] AND key = p_keys[p_at]
         ORDER BY name, key, needs_tokens, pass, head_priority, head LIMIT 1;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        v_room := {schema}.holdfast_room(p_now, p_names[p_at], p_keys[p_at], v_group.needs_tokens);
        IF NOT v_room.free THEN
            RETURN v_room.ready_at;
        END IF;
        v_elsewhere := {schema}.holdfast_blocking(p_now, v_group.names, v_group.keys, v_group.needs_tokens);
        IF v_elsewhere = 0 THEN
            SELECT min(g.ord) INTO v_elsewhere
              FROM unnest(v_group.names, v_group.keys) WITH ORDINALITY AS g (name, key, ord)
              JOIN unnest(p_names, p_keys) WITH ORDINALITY AS f (name, key, ord) ON f.name = g.name AND f.key = g.key
             WHERE f.ord > p_at;
        END IF;
        IF coalesce(v_elsewhere, 0) = 0 THEN
            v_count := 1;
            IF v_group.waiting > 1 AND NOT EXISTS (
                SELECT FROM {schema}.holdfast_permit_group
                 WHERE waiting > 0 AND name = p_names[p_at] AND key = p_keys[p_at] AND id <> v_group.id
            ) THEN
                v_count := {schema}.holdfast_room_for(
                    v_group.names, v_group.keys, v_group.waiting, v_group.needs_tokens);
            END IF;
            PERFORM {schema}.holdfast_grant_group(p_now, v_group, v_count);
        ELSE
            v_room := {schema}.holdfast_room(p_now, v_group.names[v_elsewhere], v_group.keys[v_elsewhere], true);
            UPDATE {schema}.holdfast_permit_group
               SET name = v_group.names[v_elsewhere], key = v_group.keys[v_elsewhere],
                   pass = greatest(v_group.pass, v_room.virtual)
             WHERE id = v_group.id;
        END IF;
    END LOOP;
END $$;

-- Grant the first permits of a group.
CREATE OR REPLACE FUNCTION {schema}.holdfast_grant_group(
    p_now BIGINT, p_group {schema}.holdfast_permit_group, p_count BIGINT
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.holdfast_take_permits(
        p_now, p_group.names, p_group.keys, p_group.needs_tokens, p_group.pass, p_count);
    IF p_count = 1 THEN
        UPDATE {schema}.holdfast_permit SET state = {PermitState.GRANTED}, woken = false WHERE id = p_group.head;
    ELSE
        UPDATE {schema}.holdfast_permit SET state = {PermitState.GRANTED}, woken = false
         WHERE id IN (SELECT id FROM {schema}.holdfast_permit
                       WHERE grp = p_group.id AND state = {PermitState.WAITING} ORDER BY priority, id LIMIT p_count);
    END IF;
    UPDATE {schema}.holdfast_permit_group SET waiting = waiting - p_count WHERE id = p_group.id;
    IF p_group.waiting > p_count THEN
        PERFORM {schema}.holdfast_set_head(p_group.id);
    END IF;
END $$;

-- Make tasks due that have a granted permit and no owner. A locked task is left to the next exchange. Returns the number
-- of tasks that became due.
CREATE OR REPLACE FUNCTION {schema}.holdfast_wake_granted(p_now BIGINT) RETURNS INTEGER LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_permit RECORD;
    v_count INTEGER := 0;
BEGIN
    FOR v_permit IN
        SELECT id, run, unit FROM {schema}.holdfast_permit
         WHERE state = {PermitState.GRANTED} AND owner IS NULL AND NOT woken
    LOOP
        PERFORM FROM {schema}.holdfast_task WHERE run = v_permit.run AND unit = v_permit.unit
           FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        -- The tasks of a paused run are due when it is resumed.
        UPDATE {schema}.holdfast_task SET run_at = p_now
         WHERE run = v_permit.run AND unit = v_permit.unit AND owner IS NULL
           AND (SELECT status FROM {schema}.holdfast_run WHERE id = v_permit.run) <> {Status.PAUSED};
        UPDATE {schema}.holdfast_permit SET woken = true WHERE id = v_permit.id;
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END $$;

-- Add a group. Each new group deletes up to four idle ones and the use of their keys, so that keys that are used once leave
-- no rows.
CREATE OR REPLACE FUNCTION {schema}.holdfast_new_permit_group(
    p_now BIGINT, p_names TEXT[], p_keys TEXT[], p_needs_tokens BOOLEAN
) RETURNS {schema}.holdfast_permit_group LANGUAGE plpgsql AS $$
DECLARE
    v_group {schema}.holdfast_permit_group;
BEGIN
    INSERT INTO {schema}.holdfast_permit_group (names, keys, needs_tokens, fair)
    VALUES (p_names, p_keys, p_needs_tokens, {schema}.holdfast_fair_limit(p_names)) RETURNING * INTO v_group;
    WITH idle AS (
        DELETE FROM {schema}.holdfast_permit_group AS g
         WHERE g.id IN (SELECT c.id FROM {schema}.holdfast_permit_group AS c
                         WHERE c.id >= p_now * 7919 % v_group.id AND c.id <> v_group.id ORDER BY c.id LIMIT 4)
           AND g.waiting = 0 AND EXISTS (SELECT FROM unnest(g.keys) AS l (key) WHERE l.key <> '')
           AND NOT EXISTS (SELECT FROM unnest(g.names, g.keys) AS l (name, key)
                             JOIN {schema}.holdfast_limit_use AS u ON u.name = l.name AND u.key = l.key
                            WHERE u.key <> ''
                              AND (u.used > 0 OR u.freed OR u.ready_at IS NOT NULL OR u.tat > p_now * 1000))
        RETURNING g.names, g.keys
    )
    DELETE FROM {schema}.holdfast_limit_use AS u USING idle, unnest(idle.names, idle.keys) AS l (name, key)
     WHERE u.name = l.name AND u.key = l.key AND u.key <> '';
    RETURN v_group;
END $$;

-- Record that a run, whose task this transaction has locked, has taken the tokens of its rates: its later turns continue, and
-- take none. A grant does not record it, because it locks no tasks: the request that adopts the granted permit does.
CREATE OR REPLACE FUNCTION {schema}.holdfast_mark_tokens(p_run BIGINT, p_names TEXT[])
RETURNS void LANGUAGE sql AS $$
    UPDATE {schema}.holdfast_task SET has_tokens = true
     WHERE run = p_run AND unit = 0 AND NOT has_tokens
       AND EXISTS (SELECT FROM {schema}.holdfast_limit AS l WHERE l.name = ANY (p_names) AND l.rate_count IS NOT NULL)
$$;

-- Tasks of a queue without an owner that wait for a permit, or have one that no worker uses.
CREATE OR REPLACE FUNCTION {schema}.holdfast_waiting_tasks(p_queue TEXT) RETURNS TABLE (run BIGINT, unit BIGINT)
LANGUAGE sql STABLE AS $$
    SELECT DISTINCT t.run, t.unit FROM {schema}.holdfast_permit AS p
      JOIN {schema}.holdfast_task AS t ON t.run = p.run AND t.unit = p.unit
     WHERE p.state < {PermitState.HELD} AND t.owner IS NULL AND t.queue = p_queue
$$;

-- Let the tasks of a queue that no worker owns wait for no permit. They are due, and request one when they are claimed.
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
    -- Also tasks that were parked since. One that is locked by now is claimed, and requests its permit again.
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

-- Add permits that have joined groups with waiting permits to the rows of their groups. One update for each group: the
-- dead versions of a row stay until the transaction ends, and each of its reads passes them.
CREATE OR REPLACE FUNCTION {schema}.holdfast_join_groups(p_permits BIGINT[]) RETURNS void LANGUAGE sql AS $$
    UPDATE {schema}.holdfast_permit_group AS g
       SET waiting = g.waiting + j.count,
           head = CASE WHEN j.priority < g.head_priority THEN j.id ELSE g.head END,
           head_priority = least(g.head_priority, j.priority),
           pass = CASE WHEN g.fair IS NULL AND j.priority < g.head_priority THEN j.tag ELSE g.pass END
      FROM (SELECT grp, count(*) AS count, min(priority) AS priority,
                   (array_agg(id ORDER BY priority, id))[1] AS id, (array_agg(tag ORDER BY priority, id))[1] AS tag
              FROM {schema}.holdfast_permit WHERE id = ANY (p_permits) GROUP BY grp) AS j
     WHERE g.id = j.grp
$$;

-- Request a permit for a task that this transaction has locked. p_permits, p_has_tokens: the marks of the task. joined: the
-- id of a permit that waits in a group in which others waited already; the caller adds it to the group.
CREATE OR REPLACE FUNCTION {schema}.holdfast_add_request(
    p_now BIGINT, p_run BIGINT, p_unit BIGINT, p_owner TEXT, p_epoch BIGINT, p_step BYTEA, p_attempt BIGINT,
    p_names TEXT[], p_keys TEXT[], p_priority BIGINT, p_until_end BOOLEAN, p_park BOOLEAN,
    p_permits BOOLEAN, p_has_tokens BOOLEAN, OUT held BOOLEAN, OUT joined BIGINT
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_found {schema}.holdfast_permit;
    v_group {schema}.holdfast_permit_group;
    v_fair INTEGER;
    v_is_run BOOLEAN := p_unit = 0 AND p_step = ''::bytea;
    v_blocking INTEGER := 0;
    v_tag DOUBLE PRECISION;
    v_pass DOUBLE PRECISION;
    v_needs BOOLEAN;
    v_id BIGINT;
BEGIN
    IF p_permits THEN
        SELECT * INTO v_found FROM {schema}.holdfast_permit
         WHERE run = p_run AND unit = p_unit AND step = p_step
           AND (state < {PermitState.HELD} OR attempt = p_attempt OR until_end)
         ORDER BY state LIMIT 1;
        IF FOUND THEN
            held := v_found.state <> {PermitState.WAITING};
            UPDATE {schema}.holdfast_permit
               SET state = CASE WHEN held THEN {PermitState.HELD} ELSE {PermitState.WAITING} END, owner = p_owner,
                   epoch = p_epoch, attempt = p_attempt, parked = CASE WHEN p_park AND NOT held THEN p_epoch END
             WHERE id = v_found.id;
            IF held AND v_is_run THEN
                PERFORM {schema}.holdfast_mark_tokens(p_run, p_names);
            END IF;
            RETURN;
        END IF;
    ELSE
        UPDATE {schema}.holdfast_task SET permits = true WHERE run = p_run AND unit = p_unit;
    END IF;
    v_needs := NOT (v_is_run AND p_has_tokens);
    SELECT * INTO v_group FROM {schema}.holdfast_permit_group
     WHERE names = p_names AND keys = p_keys AND needs_tokens = v_needs;
    IF NOT FOUND THEN
        v_group := {schema}.holdfast_new_permit_group(p_now, p_names, p_keys, v_needs);
    END IF;
    IF v_group.waiting = 0 THEN
        v_blocking := {schema}.holdfast_blocking(p_now, p_names, p_keys, v_needs);
    END IF;
    held := v_group.waiting = 0 AND v_blocking = 0;
    SELECT coalesce(max(u.virtual), 0) INTO v_tag FROM unnest(p_names, p_keys) AS l (name, key)
      JOIN {schema}.holdfast_limit_use AS u ON u.name = l.name AND u.key = l.key;
    INSERT INTO {schema}.holdfast_permit (run, unit, step, attempt, grp, state, priority, tag, until_end, owner, epoch,
                                          parked)
    VALUES (p_run, p_unit, p_step, p_attempt, v_group.id,
            CASE WHEN held THEN {PermitState.HELD} ELSE {PermitState.WAITING} END, p_priority, v_tag, p_until_end,
            p_owner, p_epoch, CASE WHEN p_park AND NOT held THEN p_epoch END)
    RETURNING id INTO v_id;
    IF held THEN
        PERFORM {schema}.holdfast_take_permits(p_now, p_names, p_keys, v_needs, 0, 1);
        IF v_is_run THEN
            PERFORM {schema}.holdfast_mark_tokens(p_run, p_names);
        END IF;
    ELSIF v_group.waiting > 0 THEN
        joined := v_id;
    ELSE
        v_pass := v_tag;
        v_fair := {schema}.holdfast_fair_limit(p_names);
        IF v_fair IS NOT NULL THEN
            SELECT greatest(v_tag, max(u.pass)) INTO v_pass FROM {schema}.holdfast_limit_use AS u
             WHERE u.name = p_names[v_fair] AND u.key = p_keys[v_fair];
        END IF;
        UPDATE {schema}.holdfast_permit_group
           SET waiting = 1, name = p_names[v_blocking], key = p_keys[v_blocking], pass = v_pass,
               head_priority = p_priority, head = v_id, fair = v_fair
         WHERE id = v_group.id;
    END IF;
END $$;

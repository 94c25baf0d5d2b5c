-- Grants: the permits that limits have room for (docs/architecture.md, "Flow control").

-- Take permits one after the other, in the order of p_groups, which holds the group of each permit. A permit takes all
-- limits of its group or none. A group that finds a limit without room is blocked there, and its next permits are not
-- tried. The use of the limits is counted in arrays, and each row is read and written once.
--
-- p_passes: for each permit, the pass with which its group was chosen; 0 for a request, which has not waited.
-- p_name, p_key: the limit at which the groups wait; without room there, no further permit is tried. NULL for requests; a
-- request is not tried if permits of its group wait.
-- p_later_names, p_later_keys: limits that are settled after p_name. A group that could take one of them competes there.
--
-- taken: the permits that were taken. group_at: for each permit, the position of its group in the arrays of groups.
-- groups: their ids. names, keys: the limit that blocks the group, other than p_name; passes: the lowest pass with which
-- the group waits there. tags: the virtual time of a request. fairs: the position of the fair limit. fair_names, fair_keys
-- and fair_passes: passes that have changed. any_moved: a group was blocked. is_full: p_name has no room, until ready_at if
-- that is because of its rate.
CREATE OR REPLACE FUNCTION {schema}.holdfast_take_in_order(
    p_now BIGINT, p_groups BIGINT[], p_passes DOUBLE PRECISION[], p_name TEXT, p_key TEXT, p_later_names TEXT[],
    p_later_keys TEXT[],
    OUT taken BOOLEAN[], OUT group_at INTEGER[], OUT groups BIGINT[], OUT names TEXT[], OUT keys TEXT[],
    OUT passes DOUBLE PRECISION[], OUT tags DOUBLE PRECISION[], OUT fairs INTEGER[], OUT fair_names TEXT[],
    OUT fair_keys TEXT[], OUT fair_passes DOUBLE PRECISION[], OUT any_moved BOOLEAN, OUT is_full BOOLEAN,
    OUT ready_at BIGINT
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now_us BIGINT := p_now * 1000;
    v_any_later BOOLEAN := cardinality(p_later_names) > 0;
    -- For each group: the first and the last of its limits in v_limits, its fair limit, and the one that blocks it (0:
    -- none, -1: its permits wait already). The values are positions in the arrays of limits.
    v_needs_tokens BOOLEAN[];
    v_first INTEGER[];
    v_last INTEGER[];
    v_limits INTEGER[];
    v_fair INTEGER[];
    v_blocking INTEGER[];
    -- For each limit and key.
    v_names TEXT[];
    v_keys TEXT[];
    v_used BIGINT[];
    v_concurrency BIGINT[];
    v_interval BIGINT[];
    v_latest BIGINT[];
    v_tat BIGINT[];
    v_is_early BOOLEAN[];
    v_pass DOUBLE PRECISION[];
    v_virtual DOUBLE PRECISION[];
    v_weight DOUBLE PRECISION[];
    v_is_later BOOLEAN[];
    v_taken BIGINT[];
    v_ready_at BIGINT[];
    v_settled INTEGER;
    g INTEGER;
    l INTEGER;
    v_found INTEGER;
    v_early BIGINT;
    v_tag DOUBLE PRECISION;
    v_changes BOOLEAN;
BEGIN
    WITH member AS MATERIALIZED (  -- limits of the groups
        SELECT g.id, g.needs_tokens, g.waiting, n.name, n.key, n.ord, f.fair,
               (n.name = p_name AND n.key = p_key) IS TRUE AS settled,
               dense_rank() OVER (ORDER BY n.name COLLATE "C", n.key COLLATE "C")::int AS at
          FROM {schema}.holdfast_permit_group AS g
         CROSS JOIN LATERAL unnest(g.names, g.keys) WITH ORDINALITY AS n (name, key, ord)
          LEFT JOIN {schema}.holdfast_limit AS f ON f.name = n.name
         WHERE g.id = ANY (p_groups)
    ), by_group AS (
        SELECT array_agg(x.id) AS ids, array_agg(x.needs_tokens) AS needs_tokens,
               array_agg(x.last - x.count + 1) AS first, array_agg(x.last) AS last, array_agg(x.fair) AS fair,
               array_agg(x.fair_ord) AS fair_ord,
               array_agg(CASE WHEN x.waiting > 0 AND p_name IS NULL THEN -1 ELSE 0 END) AS blocking
          FROM (SELECT m.id, m.needs_tokens, m.waiting, count(*)::int AS count,
                       (sum(count(*)) OVER (ORDER BY m.id))::int AS last,
                       min(m.ord) FILTER (WHERE m.fair)::int AS fair_ord,
                       (array_agg(m.at ORDER BY m.ord) FILTER (WHERE m.fair))[1] AS fair
                  FROM member AS m GROUP BY m.id, m.needs_tokens, m.waiting ORDER BY m.id) AS x
    ), by_limit AS (
        SELECT array_agg(x.name) AS names, array_agg(x.key) AS keys, array_agg(x.used) AS used,
               array_agg(x.concurrency) AS concurrency, array_agg(x.spacing) AS spacing, array_agg(x.latest) AS latest,
               -- of a slower rate, before a change, or of a clock that was set back: the rate is used up
               array_agg(least(x.tat, x.latest)) AS tat, array_agg(x.tat > x.latest) AS is_early,
               array_agg(x.pass) AS pass, array_agg(x.virtual) AS virtual, array_agg(x.weight) AS weight,
               array_agg(x.is_later) AS is_later, min(x.at) FILTER (WHERE x.settled) AS settled
          FROM (SELECT n.at, n.name, n.key, n.settled, coalesce(u.used, 0) AS used,
                       coalesce(f.concurrency, {MAX_BIGINT}) AS concurrency, r.spacing,
                       v_now_us + f.burst * r.spacing AS latest, coalesce(u.tat, 0) AS tat, coalesce(u.pass, 0) AS pass,
                       coalesce(u.virtual, 0) AS virtual,
                       CASE WHEN f.fair AND f.weights <> '{}'
                            THEN coalesce((f.weights::jsonb ->> n.key)::double precision, 1) ELSE 1 END AS weight,
                       v_any_later AND EXISTS (SELECT FROM unnest(p_later_names, p_later_keys) AS o (name, key)
                                                WHERE o.name = n.name AND o.key = n.key) AS is_later
                  FROM (SELECT DISTINCT m.at, m.name, m.key, m.settled FROM member AS m) AS n
                  LEFT JOIN {schema}.holdfast_limit AS f ON f.name = n.name
                 CROSS JOIN LATERAL (
                        SELECT (f.rate_ms * 1000 + f.rate_count - 1) / f.rate_count AS spacing) AS r
                  LEFT JOIN {schema}.holdfast_limit_use AS u ON u.name = n.name AND u.key = n.key
                 ORDER BY n.at) AS x
    )
    SELECT x.ids, x.needs_tokens, x.first, x.last, x.fair, x.fair_ord, x.blocking, y.names, y.keys, y.used,
           y.concurrency, y.spacing, y.latest, y.tat, y.is_early, y.pass, y.virtual, y.weight, y.is_later, y.settled,
           (SELECT array_agg(m.at ORDER BY m.id, m.settled DESC, m.ord) FROM member AS m)
      INTO groups, v_needs_tokens, v_first, v_last, v_fair, fairs, v_blocking, v_names, v_keys, v_used, v_concurrency,
           v_interval, v_latest, v_tat, v_is_early, v_pass, v_virtual, v_weight, v_is_later, v_settled, v_limits
      FROM by_group AS x CROSS JOIN by_limit AS y;
    IF cardinality(groups) = 1 THEN
        group_at := array_fill(1, ARRAY[cardinality(p_groups)]);
    ELSE
        SELECT array_agg(r.at ORDER BY r.ord) INTO group_at
          FROM (SELECT a.ord, dense_rank() OVER (ORDER BY a.id)::int AS at
                  FROM unnest(p_groups) WITH ORDINALITY AS a (id, ord)) AS r;
    END IF;
    taken := array_fill(false, ARRAY[cardinality(p_groups)]);
    v_taken := array_fill(0::bigint, ARRAY[cardinality(v_names)]);
    v_ready_at := array_fill(NULL::bigint, ARRAY[cardinality(v_names)]);
    is_full := false;
    v_changes := true = ANY (v_is_early);
    FOR i IN 1..cardinality(p_groups) LOOP
        g := group_at[i];
        CONTINUE WHEN v_blocking[g] <> 0;
        v_found := 0;
        FOR m IN v_first[g]..v_last[g] LOOP
            l := v_limits[m];
            IF v_used[l] >= v_concurrency[l] THEN
                v_found := l;
            ELSIF v_interval[l] > 0 AND v_needs_tokens[g] THEN
                v_early := greatest(v_tat[l], v_now_us) + v_interval[l] - v_latest[l];
                IF v_early > 0 THEN
                    v_found := l;
                    v_ready_at[l] := p_now + (v_early + 999) / 1000;
                    v_changes := true;
                END IF;
            END IF;
            EXIT WHEN v_found > 0;
        END LOOP;
        IF v_any_later AND v_found = 0 THEN
            FOR m IN v_first[g]..v_last[g] LOOP
                IF v_is_later[v_limits[m]] THEN
                    v_found := v_limits[m];
                    EXIT;
                END IF;
            END LOOP;
        END IF;
        IF v_found > 0 THEN
            v_blocking[g] := v_found;
            is_full := coalesce(v_found = v_settled, false);
            EXIT WHEN is_full;
            CONTINUE;
        END IF;
        taken[i] := true;
        v_changes := true;
        FOR m IN v_first[g]..v_last[g] LOOP
            l := v_limits[m];
            v_used[l] := v_used[l] + 1;
            v_taken[l] := v_taken[l] + 1;
            v_virtual[l] := greatest(v_virtual[l], p_passes[i]);
            IF v_interval[l] > 0 AND v_needs_tokens[g] THEN
                v_tat[l] := greatest(v_tat[l], v_now_us) + v_interval[l];
            END IF;
        END LOOP;
        IF v_fair[g] > 0 THEN  -- the pass of a fair key increases by the inverse of the key's weight
            l := v_fair[g];
            v_virtual[l] := greatest(v_virtual[l], v_pass[l]);
            v_pass[l] := v_virtual[l] + 1 / v_weight[l];
        END IF;
    END LOOP;
    ready_at := v_ready_at[v_settled];
    is_full := is_full OR coalesce(v_used[v_settled] >= v_concurrency[v_settled], false);
    any_moved := false;

    names := array_fill(NULL::text, ARRAY[cardinality(groups)]);
    keys := names;
    passes := array_fill(NULL::double precision, ARRAY[cardinality(groups)]);
    tags := passes;
    FOR g IN 1..cardinality(groups) LOOP
        v_found := v_blocking[g];
        IF v_found > 0 AND v_found IS DISTINCT FROM v_settled THEN
            names[g] := v_names[v_found];
            keys[g] := v_keys[v_found];
            passes[g] := v_virtual[v_found];
            any_moved := true;
        END IF;
        IF p_name IS NULL AND v_found <> 0 THEN
            v_tag := 0;
            FOR m IN v_first[g]..v_last[g] LOOP
                v_tag := greatest(v_tag, v_virtual[v_limits[m]]);
            END LOOP;
            tags[g] := v_tag;
            passes[g] := greatest(v_tag, v_pass[v_fair[g]]);
        END IF;
        IF v_taken[v_fair[g]] > 0 THEN
            fair_names := fair_names || v_names[v_fair[g]];
            fair_keys := fair_keys || v_keys[v_fair[g]];
            fair_passes := fair_passes || v_pass[v_fair[g]];
        END IF;
    END LOOP;
    IF v_changes THEN
        INSERT INTO {schema}.holdfast_limit_use AS u (name, key, used, tat, pass, virtual, ready_at)
        SELECT n.name, n.key, n.taken, n.tat, n.pass, n.virtual, n.ready_at
          FROM unnest(v_names, v_keys, v_taken, v_tat, v_pass, v_virtual, v_ready_at, v_is_early)
               AS n (name, key, taken, tat, pass, virtual, ready_at, is_early)
         WHERE n.taken > 0 OR n.ready_at IS NOT NULL OR n.is_early
        ON CONFLICT (name, key) DO UPDATE
           SET used = u.used + excluded.used, tat = excluded.tat, pass = excluded.pass, virtual = excluded.virtual,
               ready_at = coalesce(excluded.ready_at, u.ready_at);
    END IF;
END $$;

-- Set the passes of the groups of fair keys. Their permits have been granted, so that a group without further permits is
-- not written again.
CREATE OR REPLACE FUNCTION {schema}.holdfast_set_passes(p_names TEXT[], p_keys TEXT[], p_passes DOUBLE PRECISION[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.holdfast_permit_group AS g SET pass = n.pass
      FROM unnest(p_names, p_keys, p_passes) AS n (name, key, pass)
     WHERE g.names[g.fair] = n.name AND g.keys[g.fair] = n.key AND g.waiting > 0 AND g.pass <> n.pass;
END $$;

-- Grant waiting permits for which freed limits, and rates that are ready, have room. Limits with keys come first; a group
-- that could be granted competes at the last of its limits that is settled. p_owner: the worker that learns of its grants
-- by the reply to this exchange. It holds them at once; they are returned.
CREATE OR REPLACE FUNCTION {schema}.holdfast_settle_limits(p_now BIGINT, p_owner TEXT)
RETURNS {schema}.holdfast_permit[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_names TEXT[];
    v_keys TEXT[];
    v_any_idle BOOLEAN;
    v_granted RECORD;
    v_held {schema}.holdfast_permit[] := '{}';
BEGIN
    SELECT array_agg(u.name ORDER BY u.key = '', u.name, u.key) FILTER (WHERE u.waits),
           array_agg(u.key ORDER BY u.key = '', u.name, u.key) FILTER (WHERE u.waits), bool_or(NOT u.waits)
      INTO v_names, v_keys, v_any_idle
      FROM (SELECT f.name, f.key, EXISTS (SELECT FROM {schema}.holdfast_permit_group AS g
                                           WHERE g.waiting > 0 AND g.name = f.name AND g.key = f.key) AS waits
              FROM (SELECT name, key FROM {schema}.holdfast_limit_use WHERE freed
                    UNION SELECT name, key FROM {schema}.holdfast_limit_use
                           WHERE ready_at IS NOT NULL AND ready_at <= p_now) AS f) AS u;
    IF v_any_idle THEN
        UPDATE {schema}.holdfast_limit_use AS u SET freed = false, ready_at = NULL
         WHERE (u.freed OR (u.ready_at IS NOT NULL AND u.ready_at <= p_now))
           AND NOT EXISTS (SELECT FROM {schema}.holdfast_permit_group AS g
                            WHERE g.waiting > 0 AND g.name = u.name AND g.key = u.key);
    END IF;
    FOR i IN 1..coalesce(cardinality(v_names), 0) LOOP
        v_granted := {schema}.holdfast_grant_waiting(
            p_now, p_owner, v_names[i], v_keys[i], v_names[i + 1:], v_keys[i + 1:]);
        v_held := v_held || v_granted.held;
        UPDATE {schema}.holdfast_limit_use SET freed = false, ready_at = v_granted.ready_at
         WHERE name = v_names[i] AND key = v_keys[i];
    END LOOP;
    RETURN v_held;
END $$;

-- Grant permits of the groups that wait at a limit, until it has no room or no group waits. p_later_names, p_later_keys: see
-- holdfast_take_in_order. held: the permits that p_owner holds now. ready_at: when the rate of the limit has room, if
-- groups wait for that.
--
-- The next permits are read ahead in the order in which they would be granted one by one: each grant of a fair key
-- increases the pass of the key. Of each group as many are read as it gets if the groups get equal shares; if it would get
-- more, the order is only known up to the last one that was read.
CREATE OR REPLACE FUNCTION {schema}.holdfast_grant_waiting(
    p_now BIGINT, p_owner TEXT, p_name TEXT, p_key TEXT, p_later_names TEXT[], p_later_keys TEXT[],
    OUT held {schema}.holdfast_permit[], OUT ready_at BIGINT
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_room BIGINT;
    v_known INTEGER;
    v_permits BIGINT[];
    v_groups BIGINT[];
    v_passes DOUBLE PRECISION[];
    v_is_last BOOLEAN[];
    v_left BOOLEAN[];
    v_take RECORD;
BEGIN
    LOOP
        SELECT least({GRANTED_AT_ONCE}, f.concurrency - coalesce(u.used, 0),
                     CASE WHEN f.rate_count IS NOT NULL THEN {GRANTED_BY_RATE} END) INTO v_room
          FROM (SELECT p_name AS name, p_key AS key) AS n
          LEFT JOIN {schema}.holdfast_limit AS f ON f.name = n.name
          LEFT JOIN {schema}.holdfast_limit_use AS u ON u.name = n.name AND u.key = n.key;
        EXIT WHEN v_room <= 0;
        WITH candidate AS MATERIALIZED (
            SELECT g.id, g.needs_tokens, g.pass, g.head, g.head_priority, g.waiting, g.fair,
                   g.names[g.fair] AS fair_name, g.keys[g.fair] AS fair_key
              FROM {schema}.holdfast_permit_group AS g
             WHERE g.waiting > 0 AND g.name = p_name AND g.key = p_key
             ORDER BY g.name, g.key, g.needs_tokens, g.pass, g.head_priority, g.head LIMIT v_room
        ), known AS (  -- the number of permits to read of each group, and the last group, unless all groups are read
            SELECT greatest(4, 2 * v_room / count(*) OVER ()) AS size, count(*) OVER () < v_room AS is_all, c.*
              FROM candidate AS c ORDER BY c.needs_tokens DESC, c.pass DESC, c.head_priority DESC, c.head DESC LIMIT 1
        ), next AS (
            SELECT c.id AS grp, c.needs_tokens, p.id, p.priority, p.n = k.size AND c.waiting > k.size AS is_last,
                   CASE WHEN c.fair IS NULL THEN max(p.tag) OVER (PARTITION BY c.id ORDER BY p.n)
                        ELSE c.pass + f.stride * (row_number() OVER (
                                 PARTITION BY c.fair_name, c.fair_key ORDER BY c.pass, p.n, p.priority, p.id) - 1)
                   END AS pass
              FROM candidate AS c CROSS JOIN known AS k
              LEFT JOIN LATERAL (
                    SELECT 1 / CASE WHEN weights = '{}' THEN 1
                                    ELSE coalesce((weights::jsonb ->> c.fair_key)::double precision, 1) END AS stride
                      FROM {schema}.holdfast_limit WHERE name = c.fair_name) AS f ON true
             CROSS JOIN LATERAL (
                    SELECT 1 AS n, c.head AS id, c.head_priority AS priority, c.pass AS tag
                    UNION ALL
                    (SELECT row_number() OVER (ORDER BY w.priority, w.id), w.id, w.priority, w.tag
                       FROM {schema}.holdfast_permit AS w
                      WHERE w.grp = c.id AND w.state = {PermitState.WAITING} AND c.waiting > 1
                      ORDER BY w.priority, w.id OFFSET 1 LIMIT k.size - 1)) AS p
        )
        SELECT array_agg(o.id), array_agg(o.grp), array_agg(o.pass), array_agg(o.is_last)
          INTO v_permits, v_groups, v_passes, v_is_last
          FROM (SELECT n.id, n.grp, n.pass, n.is_last FROM next AS n CROSS JOIN known AS k
                 WHERE k.is_all OR (n.needs_tokens, n.pass, n.priority, n.id)
                                   <= (k.needs_tokens, k.pass, k.head_priority, k.head)
                 ORDER BY n.needs_tokens, n.pass, n.priority, n.id LIMIT v_room) AS o;
        EXIT WHEN v_permits IS NULL;
        v_known := coalesce(array_position(v_is_last, true), cardinality(v_permits));
        v_take := {schema}.holdfast_take_in_order(
            p_now, v_groups[:v_known], v_passes[:v_known], p_name, p_key, p_later_names, p_later_keys);
        v_left := v_take.taken;
        WITH granted AS (
            UPDATE {schema}.holdfast_permit AS p
               SET state = CASE WHEN p.owner = p_owner THEN {PermitState.HELD} ELSE {PermitState.GRANTED} END,
                   woken = false
              FROM unnest(v_permits, v_take.taken) AS t (id, taken) WHERE t.taken AND p.id = t.id
            RETURNING p AS permit
        )
        SELECT held || array_agg(g.permit) FILTER (WHERE (g.permit).state = {PermitState.HELD}) INTO held
          FROM granted AS g;
        PERFORM {schema}.holdfast_leave_groups(v_groups, v_left);
        IF v_take.any_moved THEN
            UPDATE {schema}.holdfast_permit_group AS g SET name = m.name, key = m.key, pass = greatest(g.pass, m.pass)
              FROM unnest(v_take.groups, v_take.names, v_take.keys, v_take.passes) AS m (id, name, key, pass)
             WHERE g.id = m.id AND m.name IS NOT NULL;
        END IF;
        IF v_take.fair_names IS NOT NULL THEN
            PERFORM {schema}.holdfast_set_passes(v_take.fair_names, v_take.fair_keys, v_take.fair_passes);
        END IF;
        ready_at := v_take.ready_at;
        EXIT WHEN v_take.is_full;
    END LOOP;
END $$;

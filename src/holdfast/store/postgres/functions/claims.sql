-- Claiming tasks.

-- Claim due tasks. p_unanswered: tokens of earlier claims of this owner whose replies were lost; their tasks are
-- returned too. Expired runs come first and do not count towards p_limit. The last row has no run; its next_due is the
-- time of the next due task or expiry.
CREATE OR REPLACE FUNCTION {schema}.holdfast_claim(
    p_now BIGINT, p_owner TEXT, p_lease_ms BIGINT, p_limit BIGINT, p_queues TEXT[], p_workflows TEXT[],
    p_buckets INTEGER[], p_token BIGINT, p_unanswered BIGINT[], p_version TEXT, p_pinned TEXT[]
) RETURNS SETOF {schema}.holdfast_claimed LANGUAGE plpgsql
{planner.ordered_indexes} AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_runs BIGINT[] := '{}';
    v_units BIGINT[] := '{}';
    v_lost BOOLEAN[] := '{}';
    v_already_owned INTEGER := 0;
    v_found BIGINT[];
    v_found_unit BIGINT[];
    v_found_lost BOOLEAN[];
    v_room BIGINT := p_limit;
    v_suspect BOOLEAN := false;
    v_pins TEXT[] := CASE WHEN p_version IS NULL THEN ARRAY[''] ELSE ARRAY['', p_version] END;
    v_rank RECORD;
    v_fair BIGINT[];
    v_expires BIGINT;
BEGIN
    SELECT min(expires_at) INTO v_expires FROM {schema}.holdfast_task WHERE expires_at IS NOT NULL;
    IF v_expires <= v_now AND p_limit > 0 THEN
        RETURN QUERY SELECT v_now, NULL::bigint, true, 0::bigint, (o.r).epoch, o.kind, o.lost, NULL::bigint[],
                            NULL::text[], NULL::bytea[], NULL::bigint[], NULL::bytea[], NULL::bytea[], NULL::text[],
                            NULL::bigint, o.r
                       FROM {schema}.holdfast_claim_overdue(v_now, p_owner, p_lease_ms) AS o;
        SELECT min(expires_at) INTO v_expires FROM {schema}.holdfast_task WHERE expires_at IS NOT NULL;
    END IF;
    IF cardinality(p_unanswered) > 0 THEN
        SELECT coalesce(array_agg(run), '{}'), coalesce(array_agg(unit), '{}'), coalesce(array_agg(losses > 0), '{}')
          INTO v_runs, v_units, v_lost
          FROM {schema}.holdfast_task WHERE owner = p_owner AND claimed_by = ANY (p_unanswered);
        v_already_owned := cardinality(v_runs);
        v_room := greatest(v_room - v_already_owned, 0);
    END IF;
    -- The rest of the room is for other workflows of the queues.
    v_fair := {schema}.holdfast_take_fair(p_queues, p_workflows, (v_room + 1) / 2, '{}');
    v_room := v_room - cardinality(v_fair);
    FOR v_rank IN
        SELECT bucket, priority, array_agg(queue) AS queues, array_agg(workflow) AS workflows, array_agg(pin) AS pins
          FROM {schema}.holdfast_lanes(v_now, v_room, p_queues, p_workflows, v_pins, p_buckets)
         WHERE run_at <= v_now GROUP BY bucket, priority ORDER BY bucket, priority
    LOOP
        IF v_rank.bucket = {Bucket.SUSPECT} THEN
            v_room := least(v_room, 1);
        END IF;
        EXIT WHEN v_room <= 0;
        SELECT array_agg(run ORDER BY run_at, run, unit), array_agg(unit ORDER BY run_at, run, unit),
               array_agg(lost ORDER BY run_at, run, unit)
          INTO v_found, v_found_unit, v_found_lost
          FROM (SELECT d.run, d.unit, d.run_at, d.lost
                  FROM unnest(v_rank.queues, v_rank.workflows, v_rank.pins) AS l (queue, workflow, pin)
                 CROSS JOIN LATERAL (
                       SELECT t.run, t.unit, t.run_at, t.lost FROM {schema}.holdfast_task AS t
                        WHERE t.owner IS NULL AND t.run_at IS NOT NULL AND t.queue = l.queue
                          AND t.workflow = l.workflow AND t.pin = l.pin AND t.bucket = v_rank.bucket
                          AND t.priority = v_rank.priority AND t.run_at <= v_now
                        ORDER BY t.run_at, t.run, t.unit LIMIT v_room FOR NO KEY UPDATE SKIP LOCKED) AS d
                 ORDER BY d.run_at, d.run, d.unit LIMIT v_room) AS found;
        CONTINUE WHEN v_found IS NULL;
        v_runs := v_runs || v_found;
        v_units := v_units || v_found_unit;
        v_lost := v_lost || v_found_lost;
        v_room := v_room - cardinality(v_found);
        v_suspect := v_rank.bucket = {Bucket.SUSPECT};
        EXIT WHEN v_suspect;
    END LOOP;
    IF v_room > 0 AND cardinality(v_fair) > 0 THEN
        v_fair := v_fair || {schema}.holdfast_take_fair(
            p_queues, p_workflows, p_limit - v_already_owned - cardinality(v_fair)
                                   - (cardinality(v_runs) - v_already_owned), v_fair);
    END IF;
    IF cardinality(v_fair) > 0 THEN
        v_runs := v_runs || v_fair;
        v_units := v_units || array_fill(0::bigint, ARRAY[cardinality(v_fair)]);
        v_lost := v_lost || array_fill(false, ARRAY[cardinality(v_fair)]);
    END IF;
    IF cardinality(v_runs) < p_limit AND EXISTS (
           SELECT FROM {schema}.holdfast_fair_key AS k
            WHERE k.queue = ANY (p_queues) AND k.workflow = ANY (p_workflows)
              AND NOT EXISTS (SELECT FROM {schema}.holdfast_queue AS x WHERE x.name = k.queue AND x.paused)) THEN
        v_expires := least(v_expires, v_now + {TURN_RETRY_MS});  -- another claim has locked the keys
    END IF;
    IF cardinality(v_runs) > 0 THEN
        RETURN QUERY SELECT * FROM {schema}.holdfast_take_tasks(
            v_now, p_owner, p_lease_ms, p_token, v_runs, v_units, v_lost, v_already_owned, p_version, p_pinned);
    END IF;
    RETURN QUERY
        SELECT v_now, least(min(run_at), v_expires), NULL::boolean, NULL::bigint, NULL::bigint, NULL::int,
               NULL::boolean, NULL::bigint[], NULL::text[], NULL::bytea[], NULL::bigint[], NULL::bytea[],
               NULL::bytea[], NULL::text[], NULL::bigint, NULL::{schema}.holdfast_record
          FROM {schema}.holdfast_lanes(v_now, p_limit, p_queues, p_workflows, v_pins,
                                       CASE WHEN v_suspect THEN array_remove(p_buckets, {Bucket.SUSPECT})
                                            ELSE p_buckets END);
END $$;

-- True if one of the runs is in a paused queue.
CREATE OR REPLACE FUNCTION {schema}.holdfast_is_paused(p_runs BIGINT[]) RETURNS BOOLEAN LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM {schema}.holdfast_queue AS q
                     JOIN {schema}.holdfast_task AS t ON t.queue = q.name AND t.run = ANY (p_runs) AND t.unit = 0
                    WHERE q.paused)
$$;

-- Claim due units of one run, in the order of their numbers; suspects come last.
CREATE OR REPLACE FUNCTION {schema}.holdfast_claim_units(
    p_now BIGINT, p_owner TEXT, p_lease_ms BIGINT, p_limit BIGINT, p_run BIGINT, p_suspects BOOLEAN, p_token BIGINT,
    p_unanswered BIGINT[], p_version TEXT, p_pinned TEXT[]
) RETURNS SETOF {schema}.holdfast_claimed LANGUAGE plpgsql
{planner.ordered_indexes} AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_units BIGINT[] := '{}';
    v_lost BOOLEAN[] := '{}';
    v_already_owned INTEGER := 0;
    v_found BIGINT[];
    v_found_lost BOOLEAN[];
    v_suspects BOOLEAN := p_suspects;
BEGIN
    IF {schema}.holdfast_is_paused(ARRAY[p_run]) THEN
        p_limit := 0;
    END IF;
    IF cardinality(p_unanswered) > 0 THEN
        SELECT coalesce(array_agg(unit), '{}'), coalesce(array_agg(losses > 0), '{}') INTO v_units, v_lost
          FROM {schema}.holdfast_task
         WHERE owner = p_owner AND claimed_by = ANY (p_unanswered) AND run = p_run;
        v_already_owned := cardinality(v_units);
    END IF;
    -- Unit 0 calls no user code, so it is claimed even if it is a suspect.
    SELECT array_agg(unit), array_agg(lost) INTO v_found, v_found_lost
      FROM (SELECT t.unit, t.lost FROM {schema}.holdfast_task AS t
             WHERE t.run = p_run AND t.unit = 0 AND t.owner IS NULL AND t.run_at <= v_now
               AND p_limit > cardinality(v_units)
               FOR NO KEY UPDATE SKIP LOCKED) AS found;
    v_units := v_units || v_found;
    v_lost := v_lost || v_found_lost;
    FOR v_suspect IN 0..p_suspects::int LOOP
        SELECT array_agg(unit), array_agg(lost) INTO v_found, v_found_lost
          FROM (SELECT t.unit, t.lost FROM {schema}.holdfast_task AS t
                 WHERE t.run = p_run AND t.unit > 0 AND t.owner IS NULL AND t.run_at IS NOT NULL AND t.run_at <= v_now
                   AND (t.bucket = {Bucket.SUSPECT}) = (v_suspect = 1) AND (t.pin = '' OR t.pin = p_version)
                 ORDER BY t.unit LIMIT least(greatest(p_limit - cardinality(v_units), 0),
                                             CASE WHEN v_suspect = 1 THEN 1 ELSE p_limit END)
                   FOR NO KEY UPDATE SKIP LOCKED) AS found;
        v_units := v_units || v_found;
        v_lost := v_lost || v_found_lost;
        v_suspects := v_suspects AND (v_suspect = 0 OR v_found IS NULL);  -- one suspect at a time
    END LOOP;
    IF cardinality(v_units) > 0 THEN
        RETURN QUERY SELECT * FROM {schema}.holdfast_take_tasks(
            v_now, p_owner, p_lease_ms, p_token, array_fill(p_run, ARRAY[cardinality(v_units)]), v_units, v_lost,
            v_already_owned, p_version, p_pinned);
    END IF;
    -- Not min(): PostgreSQL 15 aggregates all units of the run instead of reading the first entry of
    -- holdfast_task_unit_due.
    RETURN QUERY
        SELECT v_now, (SELECT t.run_at FROM {schema}.holdfast_task AS t
                        WHERE t.run = p_run AND t.unit > 0 AND t.owner IS NULL AND t.run_at IS NOT NULL
                          AND (v_suspects OR t.bucket <> {Bucket.SUSPECT})
                        ORDER BY t.run_at LIMIT 1),
               NULL::boolean, NULL::bigint, NULL::bigint, NULL::int, NULL::boolean, NULL::bigint[], NULL::text[],
               NULL::bytea[], NULL::bigint[], NULL::bytea[], NULL::bytea[], NULL::text[], NULL::bigint,
               NULL::{schema}.holdfast_record;
END $$;

-- Assign locked due tasks to p_owner and return them as claims. p_owner owns the first p_already_owned of them already.
-- Runs without a version get p_version; those of the workflows p_pinned are then pinned to it.
CREATE OR REPLACE FUNCTION {schema}.holdfast_take_tasks(
    p_now BIGINT, p_owner TEXT, p_lease_ms BIGINT, p_token BIGINT, p_runs BIGINT[], p_units BIGINT[], p_lost BOOLEAN[],
    p_already_owned INTEGER, p_version TEXT, p_pinned TEXT[]
) RETURNS SETOF {schema}.holdfast_claimed LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_other BOOLEAN[];
BEGIN
    IF p_version IS NOT NULL THEN
        v_other := {schema}.holdfast_set_versions(p_runs, p_version, p_pinned);
        IF v_other IS NOT NULL THEN
            SELECT coalesce(array_agg(a.run ORDER BY a.ord), '{}'), coalesce(array_agg(a.unit ORDER BY a.ord), '{}'),
                   coalesce(array_agg(a.lost ORDER BY a.ord), '{}')
              INTO p_runs, p_units, p_lost
              FROM unnest(p_runs, p_units, p_lost, v_other) WITH ORDINALITY AS a (run, unit, lost, other, ord)
             WHERE NOT a.other OR a.ord <= p_already_owned;
        END IF;
    END IF;
    UPDATE {schema}.holdfast_task AS t
       SET owner = p_owner, lease_until = p_now + p_lease_ms, lease_ms = NULL, lost = false, claimed_by = p_token,
           -- A run that has begun does not wait for its key again.
           bucket = CASE WHEN t.bucket = {Bucket.FAIR} THEN {Bucket.STARTING} ELSE t.bucket END,
           epoch = CASE WHEN t.owner IS NULL THEN t.epoch + 1 ELSE t.epoch END
      FROM unnest(p_runs, p_units) AS a (run, unit)
     WHERE t.run = a.run AND t.unit = a.unit;
    IF 0 < ANY (p_units) THEN
        PERFORM {schema}.holdfast_write_starts(p_now, p_owner, p_now + p_lease_ms, p_runs[p_already_owned + 1:],
                                               p_units[p_already_owned + 1:]);
    END IF;
    UPDATE {schema}.holdfast_run SET status = {Status.ACTIVE}, updated_at = p_now
     WHERE id = ANY (p_runs) AND status = {Status.WAITING};
    RETURN QUERY
        SELECT p_now, NULL::bigint, false, t.unit, t.epoch, t.kind, a.lost, m.mailbox_n, m.mailbox_type,
               m.mailbox_payload, m.mailbox_at, m.mailbox_sender, m.mailbox_ask, m.mailbox_trace, m.mailbox_last, rec
          FROM unnest(p_runs, p_units, p_lost) WITH ORDINALITY AS a (run, unit, lost, ord)
         CROSS JOIN LATERAL (
               SELECT * FROM {schema}.holdfast_task WHERE run = a.run AND unit = a.unit OFFSET 0) AS t
          JOIN {schema}.holdfast_record AS rec ON rec.run = a.run
          LEFT JOIN LATERAL {schema}.holdfast_mailbox_page(a.run, 0) AS m ON a.unit = 0
         ORDER BY a.ord;
END $$;

-- Set the version of runs that have none, and pin those of the workflows p_pinned. Workers of two versions may claim
-- units of one run at the same time. The rows of the runs are therefore locked, in their order, and the second worker
-- finds the run pinned to the version of the first. Returns for each run whether it is pinned to another version; NULL:
-- every run had a version before. Tasks that another worker has locked are skipped, because that worker sets their pin.
CREATE OR REPLACE FUNCTION {schema}.holdfast_set_versions(p_runs BIGINT[], p_version TEXT, p_pinned TEXT[])
RETURNS BOOLEAN[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_new BIGINT[];
    v_run BIGINT;
BEGIN
    IF NOT EXISTS (SELECT FROM {schema}.holdfast_run WHERE id = ANY (p_runs) AND version IS NULL) THEN
        RETURN NULL;
    END IF;
    PERFORM FROM {schema}.holdfast_run WHERE id = ANY (p_runs) ORDER BY id FOR NO KEY UPDATE;
    WITH named AS (
        UPDATE {schema}.holdfast_run SET version = p_version, pinned = workflow = ANY (p_pinned)
         WHERE id = ANY (p_runs) AND version IS NULL
        RETURNING id, pinned
    )
    SELECT array_agg(id) INTO v_new FROM named WHERE pinned;
    IF v_new IS NOT NULL THEN
        UPDATE {schema}.holdfast_task AS t SET pin = p_version
          FROM (SELECT run, unit FROM {schema}.holdfast_task WHERE run = ANY (v_new)
                   FOR NO KEY UPDATE SKIP LOCKED) AS l
         WHERE t.run = l.run AND t.unit = l.unit;
    END IF;
    FOR v_run IN SELECT id FROM {schema}.holdfast_run
                  WHERE id = ANY (p_runs) AND pinned AND version <> p_version
    LOOP
        UPDATE {schema}.holdfast_task AS t
           SET pin = (SELECT version FROM {schema}.holdfast_run WHERE id = v_run)
          FROM (SELECT run, unit FROM {schema}.holdfast_task WHERE run = v_run FOR NO KEY UPDATE SKIP LOCKED) AS l
         WHERE t.run = l.run AND t.unit = l.unit;
    END LOOP;
    RETURN ARRAY(SELECT r.pinned AND r.version <> p_version
                   FROM unnest(p_runs) WITH ORDINALITY AS a (run, ord)
                   JOIN {schema}.holdfast_run AS r ON r.id = a.run ORDER BY a.ord);
END $$;

-- Value of the START fact of a claim.
CREATE OR REPLACE FUNCTION {schema}.holdfast_start_value(p_owner TEXT, p_lease_until BIGINT) RETURNS BYTEA
LANGUAGE sql STABLE AS $$
    SELECT convert_to('{"owner":' || to_json(p_owner) || ',"lease":' || p_lease_until || '}', 'UTF8')
$$;

-- Write a START fact for each unit that was just claimed. Its time is always later than that of the unit's previous
-- START, because the graph views tell attempts apart by their times.
CREATE OR REPLACE FUNCTION {schema}.holdfast_write_starts(
    p_now BIGINT, p_owner TEXT, p_lease_until BIGINT, p_runs BIGINT[], p_units BIGINT[]
) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_value BYTEA := {schema}.holdfast_start_value(p_owner, p_lease_until);
BEGIN
    INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, ok, value, attempts)
    SELECT t.run, {FactState.START}, t.key, t.epoch, {StepType.NODE}, s.at, s.at, true, v_value, 0
      FROM unnest(p_runs, p_units) AS a (run, unit)
     CROSS JOIN LATERAL (
           SELECT * FROM {schema}.holdfast_task WHERE run = a.run AND unit = a.unit OFFSET 0) AS t
     CROSS JOIN LATERAL (
           SELECT CASE WHEN t.epoch = 1 THEN p_now ELSE greatest(p_now, 1 + (
               SELECT f.at FROM {schema}.holdfast_fact AS f
                WHERE f.run = t.run AND f.state = {FactState.START} AND f.key = t.key AND f.n < t.epoch
                ORDER BY f.n DESC LIMIT 1)) END) AS s (at)
     WHERE a.unit > 0;
END $$;

-- Claim expired runs, whether or not they are owned or paused. expires_at moves to the end of the new lease, so no
-- other worker claims them before that. Claims of expired runs whose replies were lost are therefore not returned
-- again.
CREATE OR REPLACE FUNCTION {schema}.holdfast_claim_overdue(p_now BIGINT, p_owner TEXT, p_lease_ms BIGINT)
RETURNS TABLE (kind INTEGER, lost BOOLEAN, r {schema}.holdfast_record) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_expired RECORD;
    v_record {schema}.holdfast_record;
BEGIN
    FOR v_expired IN
        SELECT t.run, t.kind, t.lost OR t.owner IS NOT NULL AS lost, t.expires_at FROM {schema}.holdfast_task AS t
         WHERE t.expires_at IS NOT NULL AND t.expires_at <= p_now AND t.unit = 0
         ORDER BY t.expires_at LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        UPDATE {schema}.holdfast_task AS t
           SET owner = p_owner, lease_until = p_now + p_lease_ms, lease_ms = NULL, lost = false, claimed_by = NULL,
               bucket = CASE WHEN t.bucket = {Bucket.FAIR} THEN {Bucket.STARTING} ELSE t.bucket END,
               epoch = t.epoch + 1, signal = 0, expires_at = p_now + p_lease_ms
         WHERE t.run = v_expired.run AND t.unit = 0;
        SELECT * INTO v_record FROM {schema}.holdfast_record WHERE run = v_expired.run;
        v_record.expires_at := v_expired.expires_at;
        RETURN QUERY SELECT v_expired.kind, v_expired.lost, v_record;
    END LOOP;
END $$;

-- Lanes (queue, workflow, pin, bucket, priority) of the given queues, workflows, pins and buckets, each with its earliest
-- run_at.
-- Each lane costs one index seek, whatever its length. The recursion over priorities stops once p_limit lanes are due.
CREATE OR REPLACE FUNCTION {schema}.holdfast_lanes(
    p_now BIGINT, p_limit BIGINT, p_queues TEXT[], p_workflows TEXT[], p_pins TEXT[], p_buckets INTEGER[]
) RETURNS TABLE (queue TEXT, workflow TEXT, pin TEXT, bucket INTEGER, priority BIGINT, run_at BIGINT)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH RECURSIVE lane AS (
        SELECT t.queue, t.workflow, t.pin, t.bucket, t.priority, t.run_at, (t.run_at <= p_now)::int AS due
          FROM unnest(p_queues) AS q (name)
         CROSS JOIN unnest(p_workflows) AS w (name)
         CROSS JOIN unnest(p_pins) AS p (name)
         CROSS JOIN unnest(p_buckets) AS b (n)
         CROSS JOIN LATERAL (
               SELECT * FROM {schema}.holdfast_task
                WHERE owner IS NULL AND run_at IS NOT NULL
                  AND queue = q.name AND workflow = w.name AND pin = p.name AND bucket = b.n
                ORDER BY priority, run_at LIMIT 1) AS t
         WHERE NOT EXISTS (SELECT FROM {schema}.holdfast_queue AS x WHERE x.name = q.name AND x.paused)
        UNION ALL
        SELECT t.queue, t.workflow, t.pin, t.bucket, t.priority, t.run_at, l.due + (t.run_at <= p_now)::int
          FROM lane AS l
         CROSS JOIN LATERAL (
               SELECT * FROM {schema}.holdfast_task
                WHERE owner IS NULL AND run_at IS NOT NULL
                  AND queue = l.queue AND workflow = l.workflow AND pin = l.pin AND bucket = l.bucket
                  AND priority > l.priority
                ORDER BY priority, run_at LIMIT 1) AS t
         WHERE l.due < p_limit
    )
    SELECT l.queue, l.workflow, l.pin, l.bucket, l.priority, l.run_at FROM lane AS l;
END $$;

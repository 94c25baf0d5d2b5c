-- Taking tasks.

-- Takes due tasks. p_doubtful: earlier claims of this owner whose answers got lost; what they took is answered now.
-- Runs that have expired come first and on top of p_limit. The last row has no run; it says when to ask again.
CREATE FUNCTION {schema}.holdfast_claim(
    p_now BIGINT, p_owner TEXT, p_lease_ms BIGINT, p_limit BIGINT, p_queues TEXT[], p_workflows TEXT[],
    p_buckets INTEGER[], p_token BIGINT, p_doubtful BIGINT[]
) RETURNS TABLE (ord BIGINT, now BIGINT, next_due BIGINT, overdue BOOLEAN, kind INTEGER, lost BOOLEAN, mail_n BIGINT[],
                 mail_type TEXT[], mail_payload BYTEA[], mail_at BIGINT[], mail_sender BYTEA[], mail_ask BYTEA[],
                 mail_last BIGINT, r {schema}.holdfast_record)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_runs BIGINT[] := '{}';
    v_lost BOOLEAN[] := '{}';
    v_found BIGINT[];
    v_found_lost BOOLEAN[];
    v_room BIGINT := p_limit;
    v_suspect BOOLEAN := false;
    v_rank RECORD;
    v_expires BIGINT;
BEGIN
    SELECT min(expires_at) INTO v_expires FROM {schema}.holdfast_task WHERE expires_at IS NOT NULL;
    IF v_expires <= v_now AND p_limit > 0 THEN
        RETURN QUERY SELECT NULL::bigint, v_now, NULL::bigint, true, o.kind, o.lost, NULL::bigint[], NULL::text[],
                            NULL::bytea[], NULL::bigint[], NULL::bytea[], NULL::bytea[], NULL::bigint, o.r
                       FROM {schema}.holdfast_overdue(v_now, p_owner, p_lease_ms) AS o;
        SELECT min(expires_at) INTO v_expires FROM {schema}.holdfast_task WHERE expires_at IS NOT NULL;
    END IF;
    IF cardinality(p_doubtful) > 0 THEN
        SELECT coalesce(array_agg(run), '{}'), coalesce(array_agg(losses > 0), '{}') INTO v_runs, v_lost
          FROM {schema}.holdfast_task WHERE owner = p_owner AND claimed_by = ANY (p_doubtful);
        v_room := greatest(v_room - cardinality(v_runs), 0);
    END IF;
    FOR v_rank IN
        SELECT bucket, priority, array_agg(queue) AS queues, array_agg(workflow) AS workflows
          FROM {schema}.holdfast_lanes(v_now, v_room, p_queues, p_workflows, p_buckets)
         WHERE run_at <= v_now GROUP BY bucket, priority ORDER BY bucket, priority
    LOOP
        IF v_rank.bucket = 2 THEN
            v_room := least(v_room, 1);
        END IF;
        EXIT WHEN v_room <= 0;
        SELECT array_agg(run ORDER BY run_at, run), array_agg(lost ORDER BY run_at, run)
          INTO v_found, v_found_lost
          FROM (SELECT d.run, d.run_at, d.lost
                  FROM unnest(v_rank.queues, v_rank.workflows) AS l (queue, workflow)
                 CROSS JOIN LATERAL (
                       SELECT t.run, t.run_at, t.lost FROM {schema}.holdfast_task AS t
                        WHERE t.owner IS NULL AND t.run_at IS NOT NULL AND t.queue = l.queue
                          AND t.workflow = l.workflow AND t.bucket = v_rank.bucket
                          AND t.priority = v_rank.priority AND t.run_at <= v_now
                        ORDER BY t.run_at, t.run LIMIT v_room FOR NO KEY UPDATE SKIP LOCKED) AS d
                 ORDER BY d.run_at, d.run LIMIT v_room) AS found;
        CONTINUE WHEN v_found IS NULL;
        v_runs := v_runs || v_found;
        v_lost := v_lost || v_found_lost;
        v_room := v_room - cardinality(v_found);
        v_suspect := v_rank.bucket = 2;
        EXIT WHEN v_suspect;
    END LOOP;
    IF cardinality(v_runs) > 0 THEN
        UPDATE {schema}.holdfast_task
           SET owner = p_owner, lease_until = v_now + p_lease_ms, lost = false, claimed_by = p_token,
               epoch = CASE WHEN owner IS NULL THEN epoch + 1 ELSE epoch END
         WHERE run = ANY (v_runs) AND unit = 0;
        UPDATE {schema}.holdfast_run SET status = 'active', updated_at = v_now
         WHERE id = ANY (v_runs) AND status = 'waiting';
        RETURN QUERY
            SELECT a.ord, v_now, NULL::bigint, false, t.kind, a.lost, m.*, rec
              FROM unnest(v_runs, v_lost) WITH ORDINALITY AS a (run, lost, ord)
              JOIN {schema}.holdfast_task AS t ON t.run = a.run AND t.unit = 0
              JOIN {schema}.holdfast_record AS rec ON rec.run = a.run
             CROSS JOIN LATERAL {schema}.holdfast_mailbag(a.run, 0) AS m
             ORDER BY a.ord;
    END IF;
    RETURN QUERY
        SELECT NULL::bigint, v_now, least(min(run_at), v_expires), NULL::boolean, NULL::int, NULL::boolean,
               NULL::bigint[], NULL::text[], NULL::bytea[], NULL::bigint[], NULL::bytea[], NULL::bytea[], NULL::bigint,
               NULL::{schema}.holdfast_record
          FROM {schema}.holdfast_lanes(v_now, p_limit, p_queues, p_workflows,
                                       CASE WHEN v_suspect THEN array_remove(p_buckets, 2) ELSE p_buckets END);
END $$;

-- Takes runs whose time has run out, whoever holds them, paused or not. A pause does not keep them from ending, and
-- nobody else is to take them before this lease has run out; so a claim of them whose answer got lost is not asked for.
CREATE FUNCTION {schema}.holdfast_overdue(p_now BIGINT, p_owner TEXT, p_lease_ms BIGINT)
RETURNS TABLE (kind INTEGER, lost BOOLEAN, r {schema}.holdfast_record) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_one RECORD;
    v_rec {schema}.holdfast_record;
BEGIN
    FOR v_one IN
        SELECT t.run, t.kind, t.lost OR t.owner IS NOT NULL AS lost, t.expires_at FROM {schema}.holdfast_task AS t
         WHERE t.expires_at IS NOT NULL AND t.expires_at <= p_now AND t.unit = 0
         ORDER BY t.expires_at LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        UPDATE {schema}.holdfast_task AS t
           SET owner = p_owner, lease_until = p_now + p_lease_ms, lost = false, claimed_by = NULL, epoch = t.epoch + 1,
               signal = 0, expires_at = p_now + p_lease_ms
         WHERE t.run = v_one.run AND t.unit = 0;
        SELECT * INTO v_rec FROM {schema}.holdfast_record WHERE run = v_one.run;
        v_rec.expires_at := v_one.expires_at;
        RETURN QUERY SELECT v_one.kind, v_one.lost, v_rec;
    END LOOP;
END $$;

-- Every lane (queue, workflow, bucket, priority) of what is asked for, with its head: the earliest run_at. One seek per
-- lane, however long the lanes are. A chain of lanes stops once it has as many due ones as can be taken.
CREATE FUNCTION {schema}.holdfast_lanes(
    p_now BIGINT, p_limit BIGINT, p_queues TEXT[], p_workflows TEXT[], p_buckets INTEGER[]
) RETURNS TABLE (queue TEXT, workflow TEXT, bucket INTEGER, priority BIGINT, run_at BIGINT)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH RECURSIVE lane AS (
        SELECT t.queue, t.workflow, t.bucket, t.priority, t.run_at, (t.run_at <= p_now)::int AS due
          FROM unnest(p_queues) AS q (name)
         CROSS JOIN unnest(p_workflows) AS w (name)
         CROSS JOIN unnest(p_buckets) AS b (n)
         CROSS JOIN LATERAL (
               SELECT * FROM {schema}.holdfast_task
                WHERE owner IS NULL AND run_at IS NOT NULL
                  AND queue = q.name AND workflow = w.name AND bucket = b.n
                ORDER BY priority, run_at LIMIT 1) AS t
        UNION ALL
        SELECT t.queue, t.workflow, t.bucket, t.priority, t.run_at, l.due + (t.run_at <= p_now)::int
          FROM lane AS l
         CROSS JOIN LATERAL (
               SELECT * FROM {schema}.holdfast_task
                WHERE owner IS NULL AND run_at IS NOT NULL
                  AND queue = l.queue AND workflow = l.workflow AND bucket = l.bucket AND priority > l.priority
                ORDER BY priority, run_at LIMIT 1) AS t
         WHERE l.due < p_limit
    )
    SELECT l.queue, l.workflow, l.bucket, l.priority, l.run_at FROM lane AS l;
END $$;

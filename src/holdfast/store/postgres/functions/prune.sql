-- Deleting finished runs (PruneRuns).

-- Delete finished runs of one workflow and status, at most p_limit. next_at and next_run: the position after the last
-- examined run; NULL: there are no more. Row locks are taken in the order of the runs' ids, and candidates that another
-- transaction has locked are skipped. Without an open transaction of its own, the call holds its locks for as long as
-- it takes: p_limit bounds that time, and the rows of large runs are deleted by later calls.
CREATE OR REPLACE FUNCTION {schema}.holdfast_prune(
    p_now BIGINT, p_workflow TEXT, p_status TEXT, p_age_ms BIGINT, p_keep BIGINT, p_at BIGINT, p_run BIGINT,
    p_limit BIGINT, p_dry_run BOOLEAN
) RETURNS TABLE (runs BIGINT, next_at BIGINT, next_run BIGINT, stored BIGINT, seconds DOUBLE PRECISION) LANGUAGE plpgsql
{planner.nested_loops} AS $$
#variable_conflict use_column
DECLARE
    v_before BIGINT := {schema}.holdfast_begin(p_now) - p_age_ms;
    v_kept BIGINT;
    v_found BIGINT[];
    v_ids BIGINT[];
    v_started TIMESTAMPTZ := clock_timestamp();
BEGIN
    runs := 0;
    seconds := 0;
    -- The ids have gaps, a large one after a failover; no row is smaller than 128 bytes.
    SELECT least(coalesce(max(id) - min(id) + 1, 0), pg_relation_size('{schema}.holdfast_run') / 128) INTO stored
      FROM {schema}.holdfast_run;
    IF NOT p_dry_run AND p_limit > 0 AND {schema}.holdfast_delete_leftovers() THEN
        next_at := p_at;
        next_run := p_run;
        RETURN NEXT;
        RETURN;
    END IF;
    IF p_keep > 0 THEN
        v_kept := {schema}.holdfast_kept_since(p_workflow, p_keep);
        IF v_kept IS NULL THEN
            RETURN NEXT;
            RETURN;
        END IF;
        v_before := least(v_before, v_kept - 1);
    END IF;
    SELECT array_agg(c.id ORDER BY c.completed_at, c.id), (array_agg(c.completed_at ORDER BY c.completed_at DESC, c.id DESC))[1]
      INTO v_found, next_at
      FROM (SELECT id, completed_at FROM {schema}.holdfast_run
             WHERE workflow = p_workflow AND status = p_status AND completed_at IS NOT NULL AND completed_at >= p_at
               AND (completed_at > p_at OR id > p_run) AND completed_at <= v_before
             ORDER BY completed_at, id LIMIT p_limit) AS c;
    IF cardinality(v_found) = p_limit THEN
        next_run := v_found[p_limit];
    ELSE
        next_at := NULL;
    END IF;
    IF v_found IS NOT NULL THEN
        v_ids := {schema}.holdfast_deletable(v_found, NOT p_dry_run);
        runs := coalesce(cardinality(v_ids), 0);
        IF runs > 0 AND NOT p_dry_run THEN
            PERFORM {schema}.holdfast_delete_runs(v_ids);
        END IF;
        seconds := extract(epoch FROM clock_timestamp() - v_started);
    END IF;
    RETURN NEXT;
END $$;

-- The end of the oldest of the newest p_keep finished runs of a workflow; NULL: there are fewer.
CREATE OR REPLACE FUNCTION {schema}.holdfast_kept_since(p_workflow TEXT, p_keep BIGINT) RETURNS BIGINT
LANGUAGE sql STABLE AS $$
    SELECT r.completed_at
      FROM unnest({schema}.holdfast_statuses()) AS s (status)
     CROSS JOIN LATERAL (
           SELECT completed_at FROM {schema}.holdfast_run
            WHERE workflow = p_workflow AND status = s.status AND completed_at IS NOT NULL
            ORDER BY completed_at DESC LIMIT p_keep) AS r
     ORDER BY r.completed_at DESC OFFSET p_keep - 1 LIMIT 1
$$;

-- Returns the runs among the finished runs p_runs that can be deleted, and the earlier runs of each instance whose
-- current run is one of them. p_lock: lock their rows.
CREATE OR REPLACE FUNCTION {schema}.holdfast_deletable(p_runs BIGINT[], p_lock BOOLEAN) RETURNS BIGINT[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_ids BIGINT[] := p_runs;
    v_earlier BIGINT[];
BEGIN
    IF p_lock THEN
        v_ids := ARRAY(SELECT id FROM {schema}.holdfast_run WHERE id = ANY (p_runs) AND completed_at IS NOT NULL
                        ORDER BY id FOR UPDATE SKIP LOCKED);
    END IF;
    v_ids := ARRAY(SELECT r.id FROM {schema}.holdfast_run AS r
                    WHERE r.id = ANY (v_ids)
                      AND NOT EXISTS (SELECT FROM {schema}.holdfast_run AS p
                                       WHERE p.id = r.parent_run AND p.completed_at IS NULL));
    v_earlier := ARRAY(SELECT o.id FROM {schema}.holdfast_run AS r
                        CROSS JOIN LATERAL (
                              SELECT id FROM {schema}.holdfast_run
                               WHERE workflow = r.workflow AND instance_id = r.instance_id AND number < r.number
                              OFFSET 0) AS o
                        WHERE r.id = ANY (v_ids) AND r.current AND r.number > 0);
    IF p_lock AND cardinality(v_earlier) > 0 THEN
        PERFORM FROM {schema}.holdfast_run WHERE id = ANY (v_earlier) ORDER BY id FOR UPDATE;
    END IF;
    -- An instance with an outbound event that is not delivered keeps all its runs.
    RETURN ARRAY(
        SELECT DISTINCT r.id FROM {schema}.holdfast_run AS r
         WHERE r.id = ANY (v_ids || v_earlier)
           AND r.instance <> ALL (ARRAY(
                   SELECT p.instance FROM {schema}.holdfast_run AS p
                    WHERE p.id = ANY (v_ids || v_earlier)
                      AND EXISTS (SELECT FROM {schema}.holdfast_outbox AS o
                                   WHERE o.run = p.id AND o.delivered_at IS NULL))));
END $$;

-- Delete finished runs whose rows are locked. The keys of events are kept while the current run of the instance, which
-- is not deleted, belongs to the same line. Keys that were made for a call begin with a byte that is not UTF-8 and are
-- not kept.
CREATE OR REPLACE FUNCTION {schema}.holdfast_delete_runs(p_runs BIGINT[]) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_keep BIGINT[];
    v_lines BIGINT[];
    v_instances BIGINT[];
    v_large BIGINT[];
    v_small BIGINT[];
BEGIN
    v_keep := ARRAY(SELECT r.id FROM {schema}.holdfast_run AS r
                     WHERE r.id = ANY (p_runs) AND NOT r.current
                       AND EXISTS (SELECT FROM {schema}.holdfast_run AS n
                                    WHERE n.id = {schema}.holdfast_current_run(r.workflow, r.instance_id)
                                      AND n.id <> ALL (p_runs) AND coalesce(n.line, n.id) = coalesce(r.line, r.id)));
    WITH gone AS (
        DELETE FROM {schema}.holdfast_run WHERE id = ANY (p_runs) RETURNING id, instance, current, coalesce(line, id) AS line
    )
    SELECT array_agg(instance) FILTER (WHERE current), array_agg(DISTINCT line) FILTER (WHERE id <> ALL (v_keep))
      INTO v_instances, v_lines FROM gone;
    v_large := ARRAY(
        SELECT a.run FROM unnest(p_runs) AS a (run)
         WHERE EXISTS (SELECT FROM {schema}.holdfast_fact WHERE run = a.run OFFSET {LARGE_RUN} LIMIT 1)
            OR EXISTS (SELECT FROM {schema}.holdfast_log WHERE run = a.run OFFSET {LARGE_RUN} LIMIT 1)
            OR EXISTS (SELECT FROM {schema}.holdfast_event WHERE run = a.run OFFSET {LARGE_RUN} LIMIT 1)
            OR EXISTS (SELECT FROM {schema}.holdfast_chunk WHERE run = a.run OFFSET {LARGE_RUN} LIMIT 1));
    v_small := ARRAY(SELECT a.run FROM unnest(p_runs) AS a (run) WHERE a.run <> ALL (v_large));
    INSERT INTO {schema}.holdfast_leftover (run, keep) SELECT a.run, a.run = ANY (v_keep) FROM unnest(v_large) AS a (run);
    DELETE FROM {schema}.holdfast_term WHERE instance = ANY (v_instances);
    DELETE FROM {schema}.holdfast_fact WHERE run = ANY (v_small);
    DELETE FROM {schema}.holdfast_log WHERE run = ANY (v_small);
    DELETE FROM {schema}.holdfast_outbox WHERE run = ANY (v_small);
    DELETE FROM {schema}.holdfast_stream WHERE run = ANY (p_runs);
    DELETE FROM {schema}.holdfast_chunk WHERE run = ANY (v_small);
    DELETE FROM {schema}.holdfast_event
     WHERE run = ANY (v_small)
       AND NOT (dedup IS NOT NULL AND substring(dedup FROM 1 FOR 1) <> '\xff'::bytea AND run = ANY (v_keep));
    DELETE FROM {schema}.holdfast_event AS e
     WHERE e.line = ANY (v_lines) AND e.dedup IS NOT NULL
       AND NOT EXISTS (SELECT FROM {schema}.holdfast_run WHERE id = e.run);
END $$;

-- Delete some of the rows of a large run that was deleted. Returns false if there is no such run.
CREATE OR REPLACE FUNCTION {schema}.holdfast_delete_leftovers() RETURNS BOOLEAN LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_left {schema}.holdfast_leftover;
    v_room BIGINT := {LEFTOVER_ROWS};
    v_count BIGINT;
BEGIN
    SELECT * INTO v_left FROM {schema}.holdfast_leftover ORDER BY run LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM {schema}.holdfast_fact WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {schema}.holdfast_fact WHERE run = v_left.run LIMIT v_room));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_room := v_room - v_count;
    DELETE FROM {schema}.holdfast_log WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {schema}.holdfast_log WHERE run = v_left.run LIMIT v_room));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_room := v_room - v_count;
    DELETE FROM {schema}.holdfast_outbox WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {schema}.holdfast_outbox WHERE run = v_left.run LIMIT v_room));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_room := v_room - v_count;
    DELETE FROM {schema}.holdfast_chunk WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {schema}.holdfast_chunk WHERE run = v_left.run LIMIT v_room));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_room := v_room - v_count;
    DELETE FROM {schema}.holdfast_event WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {schema}.holdfast_event
         WHERE run = v_left.run
           AND NOT (v_left.keep AND dedup IS NOT NULL AND substring(dedup FROM 1 FOR 1) <> '\xff'::bytea)
         LIMIT v_room));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count < v_room THEN
        DELETE FROM {schema}.holdfast_leftover WHERE run = v_left.run;
    END IF;
    RETURN true;
END $$;

-- Fair keys: runs of a workflow with a fair limit begin key by key (docs/architecture.md, "Flow control").
--
-- A start shares the row of its key (FOR KEY SHARE) until it commits. A claim that finds no run of the key deletes the
-- row only if no start shares it: the run of such a start is not visible yet.

-- Add a key of a queue and a workflow. A key that has no waiting runs gets a pass of just less than one service after the
-- lowest pass, so that it waits for at most one service of each other key.
CREATE OR REPLACE FUNCTION {schema}.holdfast_join_fair_key(
    p_queue TEXT, p_workflow TEXT, p_key TEXT, p_stride DOUBLE PRECISION
) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_pass DOUBLE PRECISION;
BEGIN
    LOOP
        PERFORM FROM {schema}.holdfast_fair_key AS k
          WHERE k.queue = p_queue AND k.workflow = p_workflow AND k.key = p_key FOR KEY SHARE;
        EXIT WHEN FOUND;
        SELECT k.pass INTO v_pass FROM {schema}.holdfast_fair_key AS k
         WHERE k.queue = p_queue AND k.workflow = p_workflow ORDER BY k.queue, k.workflow, k.pass LIMIT 1;
        INSERT INTO {schema}.holdfast_fair_key (queue, workflow, key, pass, stride)
        VALUES (p_queue, p_workflow, p_key, coalesce(v_pass, 0) + 0.999 * p_stride, p_stride)
        ON CONFLICT (queue, workflow, key) DO NOTHING;
    END LOOP;
END $$;

-- Add the keys of new runs, in their order, so that two batches cannot deadlock.
CREATE OR REPLACE FUNCTION {schema}.holdfast_join_fair_keys(p_new {schema}.holdfast_new_run[]) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_key RECORD;
BEGIN
    FOR v_key IN
        SELECT DISTINCT a.queue, a.workflow, a.fair_key, a.fair_limit FROM unnest(p_new) AS a
         WHERE a.fair_key IS NOT NULL ORDER BY a.queue, a.workflow, a.fair_key
    LOOP
        PERFORM {schema}.holdfast_join_fair_key(v_key.queue, v_key.workflow, v_key.fair_key, 1 / coalesce(
            (SELECT (l.weights::jsonb ->> v_key.fair_key)::double precision FROM {schema}.holdfast_limit AS l
              WHERE l.name = v_key.fair_limit), 1));
    END LOOP;
END $$;

-- Add the keys of a queue, whose tasks are about to be moved, to another queue.
CREATE OR REPLACE FUNCTION {schema}.holdfast_move_fair_keys(p_source TEXT, p_target TEXT) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_key RECORD;
BEGIN
    FOR v_key IN
        SELECT DISTINCT t.workflow, t.fair_key, coalesce(k.stride, 1) AS stride FROM {schema}.holdfast_task AS t
          LEFT JOIN {schema}.holdfast_fair_key AS k ON k.queue = t.queue AND k.workflow = t.workflow AND k.key = t.fair_key
         WHERE t.bucket = {Bucket.FAIR} AND t.owner IS NULL AND t.run_at IS NOT NULL AND t.queue = p_source
         ORDER BY t.workflow, t.fair_key
    LOOP
        PERFORM {schema}.holdfast_join_fair_key(p_target, v_key.workflow, v_key.fair_key, v_key.stride);
    END LOOP;
END $$;

-- Lock runs that have not begun, at most p_room: equal parts of the room for the keys with the lowest passes. Keys and
-- runs that others have locked are left out.
CREATE OR REPLACE FUNCTION {schema}.holdfast_take_fair(
    p_queues TEXT[], p_workflows TEXT[], p_room BIGINT, p_besides BIGINT[]
) RETURNS BIGINT[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_runs BIGINT[] := '{}';
    v_place RECORD;
    v_keys TEXT[];
    v_found BIGINT[];
    v_room BIGINT := p_room;
    v_wanted BIGINT;
    v_progress BOOLEAN;
BEGIN
    IF p_room <= 0 OR NOT EXISTS (SELECT FROM {schema}.holdfast_fair_key) THEN
        RETURN v_runs;
    END IF;
    FOR v_place IN
        SELECT q.name AS queue, w.name AS workflow FROM unnest(p_queues) AS q (name)
         CROSS JOIN unnest(p_workflows) AS w (name)
         WHERE NOT EXISTS (SELECT FROM {schema}.holdfast_queue AS x WHERE x.name = q.name AND x.paused)
           AND EXISTS (SELECT FROM {schema}.holdfast_fair_key AS k WHERE k.queue = q.name AND k.workflow = w.name)
    LOOP
        LOOP
            EXIT WHEN v_room <= 0;
            v_progress := false;
            SELECT coalesce(array_agg(l.key), '{}') INTO v_keys
              FROM (SELECT k.key FROM {schema}.holdfast_fair_key AS k
                     WHERE k.queue = v_place.queue AND k.workflow = v_place.workflow
                     ORDER BY k.queue, k.workflow, k.pass LIMIT v_room FOR NO KEY UPDATE SKIP LOCKED) AS l;
            FOR i IN 1..cardinality(v_keys) LOOP
                v_wanted := ceil(v_room::numeric / (cardinality(v_keys) - i + 1));
                SELECT coalesce(array_agg(d.run), '{}') INTO v_found
                  FROM (SELECT t.run FROM {schema}.holdfast_task AS t
                         WHERE t.bucket = {Bucket.FAIR} AND t.owner IS NULL AND t.run_at IS NOT NULL
                           AND t.queue = v_place.queue AND t.workflow = v_place.workflow AND t.fair_key = v_keys[i]
                           AND t.run <> ALL (v_runs) AND t.run <> ALL (p_besides)
                         ORDER BY t.queue, t.workflow, t.fair_key, t.priority, t.run LIMIT v_wanted
                           FOR NO KEY UPDATE SKIP LOCKED) AS d;
                v_runs := v_runs || v_found;
                v_room := v_room - cardinality(v_found);
                UPDATE {schema}.holdfast_fair_key AS k SET pass = k.pass + cardinality(v_found) * k.stride
                 WHERE k.queue = v_place.queue AND k.workflow = v_place.workflow AND k.key = v_keys[i];
                v_progress := v_progress OR v_found <> '{}';
                IF cardinality(v_found) < v_wanted THEN
                    v_progress := {schema}.holdfast_leave_fair_key(
                        v_place.queue, v_place.workflow, v_keys[i], v_runs || p_besides) OR v_progress;
                END IF;
            END LOOP;
            EXIT WHEN NOT v_progress;
        END LOOP;
    END LOOP;
    RETURN v_runs;
END $$;

-- Delete a key without runs besides p_taken, unless a start shares it. True if the key was deleted.
CREATE OR REPLACE FUNCTION {schema}.holdfast_leave_fair_key(
    p_queue TEXT, p_workflow TEXT, p_key TEXT, p_taken BIGINT[]
) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM FROM {schema}.holdfast_fair_key AS k
      WHERE k.queue = p_queue AND k.workflow = p_workflow AND k.key = p_key FOR UPDATE SKIP LOCKED;
    IF FOUND THEN  -- a statement of its own, which sees the runs of all starts that have shared the key
        DELETE FROM {schema}.holdfast_fair_key AS k
         WHERE k.queue = p_queue AND k.workflow = p_workflow AND k.key = p_key
           AND NOT EXISTS (SELECT FROM {schema}.holdfast_task AS t
                            WHERE t.bucket = {Bucket.FAIR} AND t.owner IS NULL AND t.run_at IS NOT NULL
                              AND t.queue = p_queue AND t.workflow = p_workflow AND t.fair_key = p_key
                              AND t.run <> ALL (p_taken));
    END IF;
    RETURN FOUND;
END $$;

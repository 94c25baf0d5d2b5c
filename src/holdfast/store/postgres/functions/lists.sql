-- Lists of runs.

CREATE OR REPLACE FUNCTION {schema}.holdfast_statuses() RETURNS TEXT[] LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY[{Status}]
$$;

-- Current runs, newest instance first, of one workflow or (NULL) of all. Finds each workflow with one index seek, reads
-- a page of each status with one index range, and returns the newest of these. p_key, p_op, p_text and p_number:
-- conditions that must all hold. p_prefix: prefix of the instance id, or NULL; without conditions, all ids with the
-- prefix are read, with one range of the index of ids.
CREATE OR REPLACE FUNCTION {schema}.holdfast_list(
    p_workflow TEXT, p_status TEXT, p_before BIGINT, p_limit BIGINT, p_prefix TEXT, p_key BYTEA[], p_op TEXT[],
    p_text BYTEA[], p_number NUMERIC[]
) RETURNS SETOF {schema}.holdfast_record LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_workflows TEXT[] := ARRAY[p_workflow];
    v_statuses TEXT[] := CASE WHEN p_status IS NULL THEN {schema}.holdfast_statuses() ELSE ARRAY[p_status] END;
    v_runs BIGINT[];
BEGIN
    IF p_workflow IS NULL THEN
        WITH RECURSIVE known (workflow) AS (
            (SELECT workflow FROM {schema}.holdfast_run WHERE current ORDER BY workflow LIMIT 1)
            UNION ALL
            SELECT (SELECT r.workflow FROM {schema}.holdfast_run AS r WHERE r.current AND r.workflow > k.workflow
                     ORDER BY r.workflow LIMIT 1)
              FROM known AS k WHERE k.workflow IS NOT NULL
        )
        SELECT array_agg(workflow) INTO v_workflows FROM known WHERE workflow IS NOT NULL;
    END IF;
    IF cardinality(p_key) > 0 THEN
        v_runs := {schema}.holdfast_search(v_workflows, v_statuses, p_before, p_limit, p_prefix, p_key, p_op, p_text,
                                           p_number);
    ELSIF p_prefix IS NOT NULL THEN
        -- '~' sorts after every character of an id. The test of current is outside the subquery, because the planner
        -- might otherwise choose the index of current runs, which holds all runs of a workflow.
        SELECT array_agg(id) INTO v_runs
          FROM (SELECT r.id
                  FROM unnest(v_workflows) AS w (name)
                 CROSS JOIN LATERAL (SELECT id, instance, status, current FROM {schema}.holdfast_run
                                      WHERE workflow = w.name AND instance_id >= p_prefix
                                        AND instance_id < p_prefix || '~' OFFSET 0) AS r
                 WHERE r.current AND r.status = ANY (v_statuses) AND r.instance < p_before
                 ORDER BY r.instance DESC LIMIT p_limit) AS newest;
    ELSE
        SELECT array_agg(id) INTO v_runs
          FROM (SELECT page.id
                  FROM unnest(v_workflows) AS w (name) CROSS JOIN unnest(v_statuses) AS s (name)
                 CROSS JOIN LATERAL (SELECT r.id, r.instance FROM {schema}.holdfast_run AS r
                                      WHERE r.current AND r.workflow = w.name AND r.status = s.name
                                        AND r.instance < p_before
                                      ORDER BY r.instance DESC LIMIT p_limit) AS page
                 ORDER BY page.instance DESC LIMIT p_limit) AS newest;
    END IF;
    RETURN QUERY
        SELECT rec.* FROM unnest(v_runs) AS a (id) JOIN {schema}.holdfast_record AS rec ON rec.run = a.id
         ORDER BY rec.instance DESC;
END $$;

-- Find runs by one of the conditions, and test the others on each run. A condition with '=' is preferred: the index
-- holds its instances in the order of the list, so only one page is read. For other operators the whole range is read.
CREATE OR REPLACE FUNCTION {schema}.holdfast_search(
    p_workflows TEXT[], p_statuses TEXT[], p_before BIGINT, p_limit BIGINT, p_prefix TEXT, p_key BYTEA[], p_op TEXT[],
    p_text BYTEA[], p_number NUMERIC[]
) RETURNS BIGINT[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_by INTEGER := coalesce(array_position(p_op, '='), 1);
    v_head BYTEA := substring(p_text[v_by] FROM 1 FOR 1000);
    v_low BYTEA := CASE WHEN p_op[v_by] IN ('<', '<=') THEN '' ELSE v_head END;
    v_high BYTEA := CASE WHEN p_op[v_by] IN ('>', '>=') THEN '\xff' ELSE v_head END;  -- above all UTF-8
    v_least NUMERIC;
    v_most NUMERIC;
    v_match TEXT;
    v_runs BIGINT[];
BEGIN
    -- A run may have several texts under one key, but only one number, so conditions on the number make one range.
    SELECT coalesce(max(number) FILTER (WHERE op IN ('=', '>', '>=')), '-Infinity'),
           coalesce(min(number) FILTER (WHERE op IN ('=', '<', '<=')), 'Infinity')
      INTO v_least, v_most
      FROM unnest(p_key, p_op, p_number) AS c (key, op, number) WHERE c.key = p_key[v_by] AND c.number IS NOT NULL;
    v_match := CASE WHEN p_text[v_by] IS NULL THEN 'number' ELSE 'head' END;
    v_match := v_match || ' IS NOT NULL AND ' || v_match || CASE
        WHEN p_op[v_by] = '=' AND p_text[v_by] IS NULL THEN ' = $8'
        WHEN p_op[v_by] = '=' THEN ' = $6'
        WHEN p_text[v_by] IS NULL THEN ' BETWEEN $8 AND $9'
        ELSE ' BETWEEN $6 AND $7' END;
    IF p_op[v_by] <> '=' THEN  -- otherwise the planner may read all instances, to have them in order
        v_match := v_match || ' OFFSET 0';
    END IF;
    EXECUTE format($query$
        SELECT array_agg(id)
          FROM (SELECT page.id
                  FROM unnest($1) AS w (name)
                 CROSS JOIN LATERAL (
                       SELECT r.id, t.instance
                         FROM (SELECT DISTINCT instance
                                 FROM (SELECT instance FROM {schema}.holdfast_term
                                        WHERE workflow = w.name AND key = $5 AND instance < $3 AND %s) AS found
                                ORDER BY instance DESC OFFSET 0) AS t
                        CROSS JOIN LATERAL (
                              SELECT id, instance_id FROM {schema}.holdfast_run
                               WHERE current AND workflow = w.name AND status = ANY ($2) AND instance = t.instance
                              OFFSET 0) AS r
                        WHERE starts_with(r.instance_id, coalesce($14, '')) AND NOT EXISTS (
                              SELECT FROM unnest($10, $11, $12, $13) AS c (key, op, text, number)
                               WHERE NOT EXISTS (
                                     SELECT FROM {schema}.holdfast_term AS x
                                      WHERE x.instance = t.instance AND x.key = c.key AND CASE c.op
                                            WHEN '=' THEN x.text = c.text OR x.number = c.number
                                            WHEN '<' THEN x.text < c.text OR x.number < c.number
                                            WHEN '<=' THEN x.text <= c.text OR x.number <= c.number
                                            WHEN '>' THEN x.text > c.text OR x.number > c.number
                                            ELSE x.text >= c.text OR x.number >= c.number END))
                        ORDER BY t.instance DESC LIMIT $4) AS page
                 ORDER BY page.instance DESC LIMIT $4) AS newest
        $query$, v_match)
      INTO v_runs
     USING p_workflows, p_statuses, p_before, p_limit, p_key[v_by], v_low, v_high, v_least, v_most, p_key, p_op, p_text,
           p_number, p_prefix;
    RETURN v_runs;
END $$;

-- Lists of runs.

CREATE OR REPLACE FUNCTION {schema}.holdfast_statuses() RETURNS TEXT[] LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY[{Status}]
$$;

-- The name in the JSON of an error, as holdfast_run.error_name has it.
CREATE OR REPLACE FUNCTION {schema}.holdfast_error_name(p_error BYTEA) RETURNS TEXT LANGUAGE sql IMMUTABLE AS $$
    SELECT left(substring(
        encode(substring(p_error FROM 1 FOR 1000), 'escape')
        FROM '^ ?{"name": ?"((?:[^"\\]|\\[0-7]{3}|\\\\(?:\\\\|[^\\]))*)"'), 200)
$$;

-- All workflows that have runs, with one index seek for each.
CREATE OR REPLACE FUNCTION {schema}.holdfast_workflows() RETURNS TEXT[] LANGUAGE sql STABLE AS $$
    WITH RECURSIVE known (workflow) AS (
        (SELECT workflow FROM {schema}.holdfast_run WHERE current ORDER BY workflow LIMIT 1)
        UNION ALL
        SELECT (SELECT r.workflow FROM {schema}.holdfast_run AS r WHERE r.current AND r.workflow > k.workflow
                 ORDER BY r.workflow LIMIT 1)
          FROM known AS k WHERE k.workflow IS NOT NULL
    )
    SELECT coalesce(array_agg(workflow), '{}') FROM known WHERE workflow IS NOT NULL
$$;

-- Current runs that meet all conditions, of one workflow or (NULL) of all, in the order of their instances: the newest
-- first, or with p_ascending the oldest first. p_start: the instance before the page. p_error: JSON with the name of
-- the error. p_key, p_op, p_text and p_number: conditions on search terms.
--
-- One condition is the source of the runs, and the others are tested on each run. An equality condition is preferred:
-- its index holds the instances in the order of the list, so only one page is read. For a prefix and a range of search
-- terms the whole range is read, and for a range of times if it holds at most {MANY_RUNS} runs. Otherwise the
-- runs of each status are read in the order of the list.
CREATE OR REPLACE FUNCTION {schema}.holdfast_list(
    p_workflow TEXT, p_status TEXT, p_start BIGINT, p_limit BIGINT, p_ascending BOOLEAN, p_prefix TEXT, p_error BYTEA,
    p_version TEXT, p_queue TEXT, p_created_low BIGINT, p_created_high BIGINT, p_ended_low BIGINT, p_ended_high BIGINT,
    p_key BYTEA[], p_op TEXT[], p_text BYTEA[], p_number NUMERIC[]
) RETURNS SETOF {schema}.holdfast_record LANGUAGE plpgsql STABLE
{planner.ordered_indexes} AS $$
#variable_conflict use_column
DECLARE
    v_workflows TEXT[] := CASE WHEN p_workflow IS NULL THEN {schema}.holdfast_workflows() ELSE ARRAY[p_workflow] END;
    v_ended BOOLEAN := p_ended_low IS NOT NULL OR p_ended_high IS NOT NULL;
    v_statuses TEXT[] := CASE
        WHEN p_status IS NOT NULL THEN ARRAY[p_status]
        WHEN v_ended THEN ARRAY[{Status.COMPLETE}, {Status.ERRORED}, {Status.TERMINATED}, {Status.CANCELLED}]
        ELSE {schema}.holdfast_statuses() END;
    v_by INTEGER := coalesce(array_position(p_op, '='), 1);
    v_head BYTEA := substring(p_text[v_by] FROM 1 FOR 1000);
    v_low BYTEA := CASE WHEN p_op[v_by] IN ('<', '<=') THEN '' ELSE v_head END;
    v_high BYTEA := CASE WHEN p_op[v_by] IN ('>', '>=') THEN '\xff' ELSE v_head END;  -- above all UTF-8
    v_least NUMERIC;
    v_most NUMERIC;
    v_order TEXT := CASE WHEN p_ascending THEN 'ASC' ELSE 'DESC' END;
    v_beyond TEXT := CASE WHEN p_ascending THEN '>' ELSE '<' END;
    v_residual TEXT := $residual$
        starts_with(r.instance_id, coalesce($5, '')) AND ($6 IS NULL OR r.error_name = $6)
        AND ($7 IS NULL OR r.version = $7) AND ($8 IS NULL OR r.queue = $8)
        AND ($9 IS NULL OR r.created_at >= $9) AND ($10 IS NULL OR r.created_at < $10)
        AND ($11 IS NULL OR r.completed_at >= $11) AND ($12 IS NULL OR r.completed_at < $12)$residual$;
    v_source TEXT;
    v_runs BIGINT[];
BEGIN
    -- A run may have several texts under one key, but only one number, so conditions on the number make one range.
    SELECT coalesce(max(number) FILTER (WHERE op IN ('=', '>', '>=')), '-Infinity'),
           coalesce(min(number) FILTER (WHERE op IN ('=', '<', '<=')), 'Infinity')
      INTO v_least, v_most
      FROM unnest(p_key, p_op, p_number) AS c (key, op, number) WHERE c.key = p_key[v_by] AND c.number IS NOT NULL;
    IF p_op[v_by] = '=' THEN
        v_source := {schema}.holdfast_list_by_terms(v_order, v_beyond, p_text[v_by] IS NOT NULL, true);
    ELSIF p_error IS NOT NULL THEN
        v_source := {schema}.holdfast_list_by_column('error_name', '$6', v_order, v_beyond);
    ELSIF p_version IS NOT NULL THEN
        v_source := {schema}.holdfast_list_by_column('version', '$7', v_order, v_beyond);
    ELSIF p_queue <> {DEFAULT_QUEUE} THEN
        v_source := {schema}.holdfast_list_by_column(
            $column$queue <> {DEFAULT_QUEUE} AND queue$column$, '$8', v_order, v_beyond);
    ELSIF p_prefix IS NOT NULL THEN
        -- '~' sorts after every character of an id. The test of current is outside the subquery, because the planner
        -- might otherwise choose the index of current runs, which holds all runs of a workflow.
        v_source := $source$
            SELECT * FROM (SELECT * FROM {schema}.holdfast_run
                            WHERE workflow = w.name AND instance_id >= $5 AND instance_id < $5 || '~' OFFSET 0) AS p
             WHERE current$source$;
    ELSIF cardinality(p_key) > 0 THEN
        v_source := {schema}.holdfast_list_by_terms(v_order, v_beyond, p_text[v_by] IS NOT NULL, false);
    ELSE
        v_source := {schema}.holdfast_list_by_time(
            v_workflows, v_statuses, p_created_low, p_created_high, p_ended_low, p_ended_high);
    END IF;
    v_source := coalesce(v_source, format($source$
        SELECT q.* FROM unnest($2) AS s (name)
         CROSS JOIN LATERAL (SELECT * FROM {schema}.holdfast_run AS r
                              WHERE r.current AND r.workflow = w.name AND r.status = s.name AND r.instance %s $3
                                AND %s
                              ORDER BY r.instance %s LIMIT $4) AS q$source$, v_beyond, v_residual, v_order));
    EXECUTE format($query$
        SELECT array_agg(id)
          FROM (SELECT page.id
                  FROM unnest($1) AS w (name)
                 CROSS JOIN LATERAL (
                       SELECT r.id, r.instance FROM (%1$s) AS r
                        WHERE r.instance %2$s $3 AND r.status = ANY ($2) AND %3$s AND NOT EXISTS (
                              SELECT FROM unnest($13, $14, $15, $16) AS c (key, op, text, number)
                               WHERE NOT EXISTS (
                                     SELECT FROM {schema}.holdfast_term AS x
                                      WHERE x.instance = r.instance AND x.key = c.key AND CASE c.op
                                            WHEN '=' THEN x.text = c.text OR x.number = c.number
                                            WHEN '<' THEN x.text < c.text OR x.number < c.number
                                            WHEN '<=' THEN x.text <= c.text OR x.number <= c.number
                                            WHEN '>' THEN x.text > c.text OR x.number > c.number
                                            ELSE x.text >= c.text OR x.number >= c.number END))
                        ORDER BY r.instance %4$s LIMIT $4) AS page
                 ORDER BY page.instance %4$s LIMIT $4) AS listed
        $query$, v_source, v_beyond, v_residual, v_order)
      INTO v_runs
     USING v_workflows, v_statuses, p_start, p_limit, p_prefix, {schema}.holdfast_error_name(p_error), p_version,
           p_queue, p_created_low, p_created_high, p_ended_low, p_ended_high, p_key, p_op, p_text, p_number,
           p_key[v_by], v_low, v_high, v_least, v_most;
    RETURN QUERY
        SELECT rec.* FROM unnest(v_runs) AS a (id) JOIN {schema}.holdfast_record AS rec ON rec.run = a.id
         ORDER BY CASE WHEN p_ascending THEN rec.instance ELSE -rec.instance END;
END $$;

-- Source of a list: the runs of workflow w.name with a value in a column, in the order of the index.
CREATE OR REPLACE FUNCTION {schema}.holdfast_list_by_column(
    p_column TEXT, p_value TEXT, p_order TEXT, p_beyond TEXT
) RETURNS TEXT LANGUAGE sql IMMUTABLE AS $$
    SELECT format($source$
        SELECT * FROM {schema}.holdfast_run
         WHERE current AND workflow = w.name AND %s = %s AND instance %s $3 ORDER BY instance %s OFFSET 0$source$,
        p_column, p_value, p_beyond, p_order)
$$;

-- Source of a list: the runs of workflow w.name whose search terms are equal to a value or, if not p_equal, in a range.
CREATE OR REPLACE FUNCTION {schema}.holdfast_list_by_terms(
    p_order TEXT, p_beyond TEXT, p_is_text BOOLEAN, p_equal BOOLEAN
) RETURNS TEXT LANGUAGE sql IMMUTABLE AS $$
    SELECT format($source$
        SELECT q.*
          FROM (SELECT DISTINCT instance
                  FROM (SELECT instance FROM {schema}.holdfast_term
                         WHERE workflow = w.name AND key = $17 AND instance %s $3 AND %s) AS found
                 ORDER BY instance %s OFFSET 0) AS t
         CROSS JOIN unnest($2) AS s (name)
         CROSS JOIN LATERAL (SELECT * FROM {schema}.holdfast_run
                              WHERE current AND workflow = w.name AND status = s.name AND instance = t.instance
                             OFFSET 0) AS q$source$,
        p_beyond, CASE WHEN p_is_text THEN 'head IS NOT NULL AND head' ELSE 'number IS NOT NULL AND number' END || CASE
            WHEN p_equal AND p_is_text THEN ' = $18'
            WHEN p_equal THEN ' = $20'
            -- Without OFFSET 0 the planner may read all instances, to have them in order.
            WHEN p_is_text THEN ' BETWEEN $18 AND $19 OFFSET 0'
            ELSE ' BETWEEN $20 AND $21 OFFSET 0' END, p_order)
$$;

-- Source of a list: the runs of workflow w.name that were created or ended in a range of times; NULL if there is no
-- such condition, or if more than {MANY_RUNS} runs meet it.
CREATE OR REPLACE FUNCTION {schema}.holdfast_list_by_time(
    p_workflows TEXT[], p_statuses TEXT[], p_created_low BIGINT, p_created_high BIGINT, p_ended_low BIGINT,
    p_ended_high BIGINT
) RETURNS TEXT LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_created BOOLEAN := p_created_low IS NOT NULL OR p_created_high IS NOT NULL;
    v_count BIGINT;
BEGIN
    IF p_ended_low IS NOT NULL OR p_ended_high IS NOT NULL THEN
        SELECT count(*) INTO v_count
          FROM (SELECT FROM unnest(p_workflows) AS w (name) CROSS JOIN unnest(p_statuses) AS s (name)
                 CROSS JOIN LATERAL (
                       SELECT FROM {schema}.holdfast_run
                        WHERE workflow = w.name AND status = s.name AND completed_at IS NOT NULL
                          AND completed_at >= coalesce(p_ended_low, 0)
                          AND completed_at < coalesce(p_ended_high, {MAX_BIGINT}) OFFSET 0) AS r
                 LIMIT {MANY_RUNS} + 1) AS bounded;
        IF v_count <= {MANY_RUNS} THEN
            RETURN $source$
                SELECT q.* FROM unnest($2) AS s (name)
                 CROSS JOIN LATERAL (
                       SELECT * FROM {schema}.holdfast_run
                        WHERE workflow = w.name AND status = s.name AND completed_at IS NOT NULL
                          AND completed_at >= coalesce($11, 0) AND completed_at < coalesce($12, {MAX_BIGINT})
                       OFFSET 0) AS q
                 WHERE q.current$source$;
        END IF;
    END IF;
    IF v_created THEN
        SELECT count(*) INTO v_count
          FROM (SELECT FROM unnest(p_workflows) AS w (name)
                 CROSS JOIN LATERAL (
                       SELECT FROM {schema}.holdfast_run
                        WHERE current AND workflow = w.name AND created_at >= coalesce(p_created_low, 0)
                          AND created_at < coalesce(p_created_high, {MAX_BIGINT})
                        ORDER BY created_at OFFSET 0) AS r
                 LIMIT {MANY_RUNS} + 1) AS bounded;
        IF v_count <= {MANY_RUNS} THEN
            RETURN $source$
                SELECT * FROM {schema}.holdfast_run
                 WHERE current AND workflow = w.name AND created_at >= coalesce($9, 0)
                   AND created_at < coalesce($10, {MAX_BIGINT})
                 ORDER BY created_at OFFSET 0$source$;
        END IF;
    END IF;
    RETURN NULL;
END $$;

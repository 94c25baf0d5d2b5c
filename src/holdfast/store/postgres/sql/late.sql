-- The lock serialises the numbering of log lines: two workers may add lines of the same run (nodes of a graph).
-- name: end_status
SELECT status FROM {schema}.holdfast_run WHERE id = $1 AND completed_at IS NOT NULL FOR NO KEY UPDATE;

-- name: facts
INSERT INTO {schema}.holdfast_fact (run, {fact.columns})
SELECT $1, {fact.columns f} FROM unnest({plain.facts.typed_arguments}) AS f ({fact.columns})
    ON CONFLICT (run, state, key, n) DO NOTHING;

-- name: logs
INSERT INTO {schema}.holdfast_log (run, n, {log.columns})
SELECT $1, coalesce((SELECT max(n) FROM {schema}.holdfast_log WHERE run = $1), 0) + l.ord, {log.columns l}
  FROM unnest({plain.logs.typed_arguments}) WITH ORDINALITY AS l ({log.columns}, ord);

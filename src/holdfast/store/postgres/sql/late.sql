-- The lock serialises the numbering of log lines: two workers may add lines of the same run (nodes of a graph).
-- name: end_status
SELECT status FROM {schema}.holdfast_run WHERE id = $1 AND completed_at IS NOT NULL FOR NO KEY UPDATE;

-- name: facts
INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, value, name, attempts,
                                    max_attempts, timeout_ms, wake_at, event_type, event)
SELECT $1, f.* FROM unnest($2::int[], $3::bytea[], $4::bigint[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[],
                           $9::boolean[], $10::bytea[], $11::bytea[], $12::bigint[], $13::bigint[], $14::bigint[],
                           $15::bigint[], $16::text[], $17::bigint[]) AS f
    ON CONFLICT (run, state, key, n) DO NOTHING;

-- name: logs
INSERT INTO {schema}.holdfast_log (run, n, level, category, message, data, at, step_key, attempt, is_replay)
SELECT $1, coalesce((SELECT max(n) FROM {schema}.holdfast_log WHERE run = $1), 0) + l.ord,
       l.level, l.category, l.message, l.data, l.at, l.step_key, l.attempt, l.is_replay
  FROM unnest($2::text[], $3::text[], $4::bytea[], $5::bytea[], $6::bigint[], $7::bytea[], $8::bigint[], $9::boolean[])
       WITH ORDINALITY AS l (level, category, message, data, at, step_key, attempt, is_replay, ord);

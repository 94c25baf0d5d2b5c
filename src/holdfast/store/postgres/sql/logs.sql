-- Two workers may have lines of the same run (nodes of a graph): the lock makes them number their lines one after the other.
-- name: ended
SELECT true FROM {schema}.holdfast_run WHERE id = $1 AND completed_at IS NOT NULL FOR NO KEY UPDATE;

-- name: add
INSERT INTO {schema}.holdfast_log (run, n, level, category, message, data, at, step_key, attempt, is_replay)
SELECT $1, coalesce((SELECT max(n) FROM {schema}.holdfast_log WHERE run = $1), 0) + l.ord,
       l.level, l.category, l.message, l.data, l.at, l.step_key, l.attempt, l.is_replay
  FROM unnest($2::text[], $3::text[], $4::bytea[], $5::bytea[], $6::bigint[], $7::bytea[], $8::bigint[], $9::boolean[])
       WITH ORDINALITY AS l (level, category, message, data, at, step_key, attempt, is_replay, ord);

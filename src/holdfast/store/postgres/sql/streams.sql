-- name: write
SELECT verdict, items, size FROM {schema}.holdfast_write_streams(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13);

-- name: append
SELECT verdict, items, size FROM {schema}.holdfast_append_stream($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: notify
SELECT pg_notify('{channel}', 'stream ' || $1::text);

-- name: has_ended
SELECT NOT EXISTS (SELECT FROM {schema}.holdfast_run WHERE id = $1 AND completed_at IS NULL);

-- The chunks after an offset, each with the state of its writer (WriterState).
-- name: chunks
SELECT c.first, c.count, c.step_key, c.attempt,
       CASE WHEN c.step_key IS NULL OR f.ok THEN {WriterState.SUCCEEDED}
            WHEN f.ok IS NULL AND EXISTS (SELECT FROM {schema}.holdfast_task AS t
                                           WHERE t.run = c.run AND t.unit = c.unit AND t.epoch = c.epoch
                                             AND t.owner IS NOT NULL) THEN {WriterState.UNDECIDED}
            ELSE {WriterState.FAILED} END,
       c.closes, c.data
  FROM {schema}.holdfast_chunk AS c
  LEFT JOIN {schema}.holdfast_fact AS f
    ON f.run = c.run AND f.state = {FactState.SETTLEMENT} AND f.key = c.step_key
   AND f.n = c.epoch * 16777216 + c.attempt
 WHERE c.run = $1 AND c.name = $2
   AND c.first >= coalesce((SELECT max(first) FROM {schema}.holdfast_chunk
                             WHERE run = $1 AND name = $2 AND first <= $3 + 1), 0)
 ORDER BY c.first LIMIT $4;

-- name: heads
SELECT name, items, size, code_items, closers FROM {schema}.holdfast_stream_heads($1);

-- name: prune
WITH old AS (
    SELECT s.run, s.name FROM {schema}.holdfast_stream AS s JOIN {schema}.holdfast_run AS r ON r.id = s.run
     WHERE r.workflow = $2 AND r.completed_at <= {schema}.holdfast_begin($1) - $3::bigint
     ORDER BY s.run, s.name LIMIT $4 FOR UPDATE OF s SKIP LOCKED
), chunks AS (
    DELETE FROM {schema}.holdfast_chunk AS c USING old WHERE c.run = old.run AND c.name = old.name
), streams AS (
    DELETE FROM {schema}.holdfast_stream AS s USING old WHERE s.run = old.run AND s.name = old.name RETURNING 1
)
SELECT count(*) FROM streams;

-- name: fence
SELECT token, reason, position FROM {schema}.holdfast_fence;

-- name: set_fence
INSERT INTO {schema}.holdfast_fence (id, token, reason, position) VALUES (1, $1, $2, $3)
ON CONFLICT (id) DO UPDATE SET token = excluded.token, reason = excluded.reason, position = excluded.position;

-- name: set_position
UPDATE {schema}.holdfast_fence SET position = $1;

-- name: set_reason
UPDATE {schema}.holdfast_fence SET reason = $1;

-- name: delete_fence
DELETE FROM {schema}.holdfast_fence;

-- name: living_workers
SELECT string_agg(id, ', ') FROM {schema}.holdfast_worker
 WHERE host IS NOT NULL AND lease_until > {schema}.holdfast_begin(NULL);

-- name: owned_tasks
SELECT count(*) FROM {schema}.holdfast_task WHERE owner IS NOT NULL;

-- A permit that a run holds until its end. needs_tokens matters to permits that wait.
-- name: insert_group
INSERT INTO {schema}.holdfast_permit_group (names, keys, needs_tokens) VALUES ($1, $2, true) ON CONFLICT DO NOTHING;

-- name: insert_permit
INSERT INTO {schema}.holdfast_permit (run, unit, step, attempt, grp, state, priority, tag, until_end, epoch,
                                      requested_at)
SELECT $1, $2, $3, $4, id, 2, $5, 0, true, 0, $6
  FROM {schema}.holdfast_permit_group WHERE names = $7 AND keys = $8 AND needs_tokens;

-- name: count_permit
INSERT INTO {schema}.holdfast_limit_use AS u (name, key, used)
SELECT name, key, 1 FROM unnest($1::text[], $2::text[]) AS l (name, key)
ON CONFLICT (name, key) DO UPDATE SET used = u.used + 1;

-- name: mark_task
UPDATE {schema}.holdfast_task SET permits = true WHERE run = $1 AND unit = $2;

-- name: last_id
SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM {schema}.holdfast_run_id;

-- name: set_last_id
SELECT setval('{schema}.holdfast_run_id', $1);

-- name: finish_audit
SELECT setval(pg_get_serial_sequence('{schema}.holdfast_audit', 'n'), max(n)) FROM {schema}.holdfast_audit
HAVING max(n) IS NOT NULL;

-- name: finish_outbox
INSERT INTO {schema}.holdfast_outlet (run, n, run_at)
SELECT DISTINCT ON (run) run, n, run_at FROM {schema}.holdfast_outbox
 WHERE delivered_at IS NULL AND parked_at IS NULL ORDER BY run, n;

-- name: blob_triggers
SELECT t.tgname, c.relname FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND t.tgname LIKE 'holdfast\_blob\_%';

-- name: has_blobs
SELECT EXISTS (SELECT FROM {schema}.holdfast_blob);

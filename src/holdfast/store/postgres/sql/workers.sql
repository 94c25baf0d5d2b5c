-- name: delete_dead
DELETE FROM {schema}.holdfast_worker WHERE lease_until < {schema}.holdfast_begin($1) - $2::bigint;

-- name: delete_old_receipts
DELETE FROM {schema}.holdfast_receipt WHERE at < {schema}.holdfast_begin($1) - $2::bigint;

-- name: register_worker
INSERT INTO {schema}.holdfast_worker (id, host, pid, queues, concurrency, started_at, seen_at, lease_until, version)
SELECT $2, $3, $4, $5, $6, now, now, now + $7::bigint, $8 FROM {schema}.holdfast_begin($1) AS now
ON CONFLICT (id) DO UPDATE
   SET host = excluded.host, pid = excluded.pid, queues = excluded.queues, concurrency = excluded.concurrency,
       seen_at = excluded.seen_at, lease_until = excluded.lease_until, version = excluded.version;

-- name: unregister_worker
DELETE FROM {schema}.holdfast_worker WHERE id = $1;

-- name: all
SELECT id, host, pid, queues, concurrency, version, started_at, seen_at,
       lease_until > {schema}.holdfast_begin($1) AS alive, draining,
       (SELECT count(*) FROM {schema}.holdfast_task AS t WHERE t.owner = w.id) AS held
  FROM {schema}.holdfast_worker AS w WHERE host IS NOT NULL ORDER BY started_at, id;

-- name: draining
SELECT EXISTS (SELECT FROM {schema}.holdfast_worker WHERE id = $1 AND draining);

-- name: drain
UPDATE {schema}.holdfast_worker SET draining = $2 WHERE id = $1;

-- name: versions
SELECT version, count(*) FROM {schema}.holdfast_run
 WHERE version IS NOT NULL AND completed_at IS NULL AND ($1::text IS NULL OR workflow = $1)
 GROUP BY version ORDER BY version;

-- name: open_runs
SELECT count(*) FROM {schema}.holdfast_task WHERE unit = 0 AND ($1::text IS NULL OR workflow = $1);

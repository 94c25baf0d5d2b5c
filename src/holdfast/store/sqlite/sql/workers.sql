-- name: register_worker
INSERT INTO holdfast_worker (id, host, pid, queues, concurrency, started_at, seen_at, lease_until, version)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7, ?8)
ON CONFLICT (id) DO UPDATE
   SET host = excluded.host, pid = excluded.pid, queues = excluded.queues, concurrency = excluded.concurrency,
       seen_at = excluded.seen_at, lease_until = excluded.lease_until, version = excluded.version;

-- name: renew
UPDATE holdfast_worker SET seen_at = ?2, lease_until = ?3 WHERE id = ?1;

-- name: unregister_worker
DELETE FROM holdfast_worker WHERE id = ?1;

-- name: delete_dead
DELETE FROM holdfast_worker WHERE lease_until < ?1;

-- name: all
SELECT id, host, pid, queues, concurrency, version, started_at, seen_at, lease_until > ?1, draining,
       (SELECT count(*) FROM holdfast_task AS t WHERE t.owner = w.id)
  FROM holdfast_worker AS w ORDER BY n;

-- name: draining
SELECT 1 FROM holdfast_worker WHERE id = ?1 AND draining = 1;

-- name: drain
UPDATE holdfast_worker SET draining = ?2 WHERE id = ?1;

-- name: versions
SELECT version, count(*) FROM holdfast_run INDEXED BY holdfast_run_version
 WHERE version IS NOT NULL AND completed_at IS NULL AND (?1 IS NULL OR workflow = ?1) GROUP BY version;

-- name: open_runs
SELECT count(*) FROM holdfast_task WHERE unit = 0 AND (?1 IS NULL OR workflow = ?1);

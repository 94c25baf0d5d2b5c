-- name: fence
SELECT reason FROM holdfast_fence LIMIT 1;

-- name: open_runs
SELECT count(*) FROM holdfast_task WHERE unit = 0;

-- name: stored
SELECT coalesce((SELECT max(id) FROM holdfast_run) - (SELECT min(id) FROM holdfast_run) + 1, 0);

-- name: parked_runs
SELECT count(*) FROM holdfast_task AS t CROSS JOIN holdfast_run AS r ON r.id = t.run
 WHERE t.unit = 0 AND r.status = 'paused' AND r.note IS NOT NULL;

-- name: suspects
SELECT count(*) FROM holdfast_task WHERE bucket = 2;

-- name: parked_outbox
SELECT count(*) FROM holdfast_outbox WHERE parked_at IS NOT NULL AND delivered_at IS NULL;

-- name: last_id
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'holdfast_run'), 0);

-- name: waiting
SELECT workflow, queue, pin, count(*), ?1 - min(run_at) FROM holdfast_task
 WHERE owner IS NULL AND run_at IS NOT NULL AND run_at <= ?1 - ?2 GROUP BY queue, workflow, pin;

-- name: living_workers
SELECT queues, version FROM holdfast_worker WHERE lease_until > ?1;

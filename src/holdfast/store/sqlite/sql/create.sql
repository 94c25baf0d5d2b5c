-- name: last_id
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'holdfast_run'), 0);

-- name: run
INSERT INTO holdfast_run (id, instance, workflow, instance_id, number, current, kind, status, params, queue,
                          priority, seed, created_at, updated_at)
VALUES (?1, ?1, ?2, ?3, 0, 1, ?4, 'active', ?5, ?6, ?7, ?8, ?9, ?9)
ON CONFLICT (workflow, instance_id, number) DO NOTHING;

-- name: made
SELECT id FROM holdfast_run WHERE id > ?1;

-- name: task
INSERT INTO holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, owner, lease_until, epoch,
                           losses, lost, signal, topics)
VALUES (?1, 0, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 0, 0, 0, '');

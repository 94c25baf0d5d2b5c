-- name: signal_pause
UPDATE holdfast_task SET signal = signal | 2 WHERE run = ?1;

-- name: withdraw_pause
UPDATE holdfast_task SET signal = signal & ~2 WHERE run = ?1;

-- name: resume_run
UPDATE holdfast_run SET status = 'active', note = NULL, updated_at = ?2 WHERE id = ?1;

-- name: resume_task
UPDATE holdfast_task SET run_at = ?2, kind = ?3, bucket = ?4, losses = 0 WHERE run = ?1;

-- name: terminate
UPDATE holdfast_run SET status = 'terminated', note = ?2, updated_at = ?3, completed_at = ?3 WHERE id = ?1;

-- name: drop_task
DELETE FROM holdfast_task WHERE run = ?1;

-- name: supersede
UPDATE holdfast_run SET current = 0 WHERE id = ?1;

-- name: again
INSERT INTO holdfast_run (instance, workflow, instance_id, number, current, kind, status, params, queue, priority,
                          seed, created_at, updated_at)
SELECT instance, workflow, instance_id, number + 1, 1, kind, 'active', params, queue, priority, seed, created_at, ?2
  FROM holdfast_run WHERE id = ?1;

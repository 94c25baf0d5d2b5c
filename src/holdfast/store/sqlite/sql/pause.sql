-- name: run
UPDATE holdfast_run SET status = 'paused', note = ?2, updated_at = ?3 WHERE id = ?1;

-- Units that are owned run to their end.
-- name: task
UPDATE holdfast_task SET owner = NULL, lease_until = NULL, resume_at = run_at, run_at = NULL, signal = 0
 WHERE run = ?1 AND (unit = 0 OR (owner IS NULL AND run_at IS NOT NULL));

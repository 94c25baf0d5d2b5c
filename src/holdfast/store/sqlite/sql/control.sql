-- name: signal_pause
UPDATE holdfast_task SET signal = signal | 2 WHERE run = ?1 AND unit = 0;

-- name: withdraw_pause
UPDATE holdfast_task SET signal = signal & ~2 WHERE run = ?1 AND unit = 0;

-- name: resume_run
UPDATE holdfast_run SET status = 'active', note = NULL, updated_at = ?2 WHERE id = ?1;

-- Unit 0, and the units whose missing is 0. A loss that no claim has reported yet is kept.
-- name: resume_task
UPDATE holdfast_task SET run_at = ?2, kind = ?3, bucket = ?4, losses = lost
 WHERE run = ?1 AND (unit = 0 OR (owner IS NULL AND missing = 0));

-- name: set_cancel_deadline
UPDATE holdfast_task SET expires_at = ?2, expiry = 'cancel'
 WHERE run = ?1 AND unit = 0 AND (expires_at IS NULL OR expires_at > ?2);

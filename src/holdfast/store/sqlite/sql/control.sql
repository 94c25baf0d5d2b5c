-- name: signal_pause
UPDATE holdfast_task SET signal = signal | 2 WHERE run = ?1 AND unit = 0;

-- name: withdraw_pause
UPDATE holdfast_task SET signal = signal & ~2 WHERE run = ?1 AND unit = 0;

-- name: resume_run
UPDATE holdfast_run SET status = iif((SELECT held_at FROM holdfast_task WHERE run = ?1 AND unit = 0) IS NULL, 'active',
                                     'waiting'), note = NULL, updated_at = ?2
 WHERE id = ?1;

-- Unit 0, and the units whose missing is 0. A loss that no claim has reported yet is kept. A held run stays held.
-- name: resume_task
UPDATE holdfast_task
   SET run_at = iif((SELECT held_at FROM holdfast_task WHERE run = ?1 AND unit = 0) IS NULL, ?2, NULL), kind = ?3, bucket = ?4, losses = lost
 WHERE run = ?1 AND (unit = 0 OR (owner IS NULL AND missing = 0));

-- name: move_run
UPDATE holdfast_run SET version = ?2, pinned = pinned OR ?3, updated_at = ?4 WHERE id = ?1 RETURNING pinned;

-- The epoch of a run without an owner is increased: a worker of the old version may have the run's machine in its
-- cache, which is valid for the next epoch only.
-- name: move_tasks
UPDATE holdfast_task SET pin = iif(?3, ?2, ''), epoch = epoch + (owner IS NULL AND unit = 0) WHERE run = ?1;

-- name: is_held
SELECT EXISTS (SELECT 1 FROM holdfast_task WHERE run = ?1 AND unit = 0 AND held_at IS NOT NULL);

-- name: set_cancel_deadline
UPDATE holdfast_task SET expires_at = ?2, expiry = 'cancel'
 WHERE run = ?1 AND unit = 0 AND (expires_at IS NULL OR expires_at > ?2);

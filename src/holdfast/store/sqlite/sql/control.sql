-- name: signal_pause
UPDATE holdfast_task SET signal = signal | 2 WHERE run = ?1 AND unit = 0;

-- name: withdraw_pause
UPDATE holdfast_task SET signal = signal & ~2 WHERE run = ?1 AND unit = 0;

-- A node of the run was started, or the run has received a request that it has to answer.
-- name: has_begun
SELECT EXISTS (SELECT 1 FROM holdfast_fact WHERE run = ?1 AND state = 1)
    OR EXISTS (SELECT 1 FROM holdfast_event INDEXED BY holdfast_event_engine
                WHERE run = ?1 AND delivered_at IS NULL AND type >= '@' AND type < 'A');

-- Unit 0, and the units whose missing is 0. A loss that no claim has reported yet is kept. A held run stays held. A run
-- that has begun (?5) is due at once, so that its code waits anew. A run that has not begun, and a unit that waits for its
-- next attempt, keep their due times.
-- name: resume_task
UPDATE holdfast_task
   SET run_at = CASE WHEN (SELECT held_at FROM holdfast_task WHERE run = ?1 AND unit = 0) IS NOT NULL THEN NULL
                     WHEN unit > 0 THEN max(?2, coalesce(resume_at, ?2))
                     WHEN ?5 THEN ?2
                     WHEN missing = 0 THEN max(?2, coalesce(resume_at, ?2)) END,
       resume_at = NULL, kind = ?3, bucket = ?4, losses = lost
 WHERE run = ?1 AND (unit = 0 OR (owner IS NULL AND missing = 0));

-- After resume_task.
-- name: resume_run
UPDATE holdfast_run
   SET status = iif(EXISTS (SELECT 1 FROM holdfast_task WHERE run = ?1 AND (owner IS NOT NULL OR run_at <= ?2)), 'active',
                    'waiting'),
       note = NULL, updated_at = ?2
 WHERE id = ?1;

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

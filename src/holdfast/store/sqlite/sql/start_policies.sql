-- name: open_single
SELECT run FROM holdfast_task INDEXED BY holdfast_task_single
 WHERE workflow = ?1 AND single = ?2 AND held_at IS NULL AND run <> ?3 LIMIT 1;

-- Runs of a group, each with 1 if it has begun: a worker has claimed the run or a unit, so code may have been executed.
-- name: group
SELECT t.run, t.epoch > 0 OR EXISTS (SELECT 1 FROM holdfast_fact AS f WHERE f.run = t.run AND f.state = 1)
  FROM (SELECT run, epoch FROM holdfast_task INDEXED BY holdfast_task_single
         WHERE workflow = ?1 AND single = ?2 AND held_at IS NULL
        UNION ALL
        SELECT run, epoch FROM holdfast_task INDEXED BY holdfast_task_held
         WHERE workflow = ?1 AND single = ?2 AND held_at IS NOT NULL) AS t
 ORDER BY t.run;

-- name: is_cancelled
SELECT EXISTS (SELECT 1 FROM holdfast_event WHERE run = ?1 AND type = '@cancel');

-- name: join
UPDATE holdfast_task SET single = ?2 WHERE run = ?1 AND unit = 0;

-- name: hold
UPDATE holdfast_task SET held_at = ?2 WHERE run = ?1 AND unit = 0;

-- While a run is held, its task and its ready units have no due time.
-- name: clear_due
UPDATE holdfast_task SET run_at = NULL WHERE run = ?1;

-- name: set_waiting
UPDATE holdfast_run SET status = 'waiting' WHERE id = ?1;

-- The pending run with a key. Only the last run can be pending.
-- name: pending
SELECT t.run, t.items, r.created_at, length(r.params), t.run_at IS NOT NULL OR t.missing > 0
  FROM holdfast_task AS t INDEXED BY holdfast_task_gather
  JOIN holdfast_run AS r ON r.id = t.run
 WHERE t.workflow = ?1 AND t.gather = ?2 AND t.epoch = 0 AND t.owner IS NULL
   AND NOT EXISTS (SELECT 1 FROM holdfast_fact AS f WHERE f.run = t.run AND f.state = 1)
 ORDER BY t.run DESC LIMIT 1;

-- name: gather
UPDATE holdfast_task SET gather = ?2, items = ?3 WHERE run = ?1 AND unit = 0;

-- name: replace_start
UPDATE holdfast_run
   SET params = ?2, options = ?3, memo = ?4, search = ?5, queue = ?6, priority = ?7, version = ?8, pinned = ?9 <> '',
       updated_at = ?10
 WHERE id = ?1;

-- name: move_tasks
UPDATE holdfast_task SET queue = ?2, priority = ?3, pin = ?4 WHERE run = ?1;

-- name: move_expiry
UPDATE holdfast_task SET expires_at = ?2, expiry = ?3 WHERE run = ?1 AND unit = 0;

-- The due time of a pending run, or of its ready units; that of a paused run is for its resume.
-- name: move_due
UPDATE holdfast_task SET run_at = iif(run_at IS NULL, NULL, ?2), resume_at = iif(resume_at IS NULL, NULL, ?2)
 WHERE run = ?1 AND (run_at IS NOT NULL OR resume_at IS NOT NULL);

-- Both lists are JSON arrays: the last bracket of the first and the first of the second become a comma.
-- name: append_item
UPDATE holdfast_run
   SET params = CAST(substr(params, 1, length(params) - 1) || ',' || substr(?2, 2) AS BLOB), updated_at = ?3
 WHERE id = ?1;

-- name: count_item
UPDATE holdfast_task SET items = items + 1 WHERE run = ?1 AND unit = 0;

-- Every requested lane (queue, workflow, pin, bucket, priority) with the earliest run_at of its tasks. One seek per lane,
-- however long the lanes are. The seek is by priority alone, because SQLite scans equal rows when it seeks by a row
-- value. The recursion over priorities stops when it has found as many lanes with due tasks as tasks can be claimed.
-- name: lanes
WITH RECURSIVE
    bucket (n) AS (SELECT value FROM json_each(?5)),
    lane (queue, workflow, pin, bucket, priority, run_at, due) AS (
        SELECT t.queue, t.workflow, t.pin, t.bucket, t.priority, t.run_at, t.run_at <= ?3
          FROM json_each(?1) AS q
         CROSS JOIN json_each(?2) AS w
         CROSS JOIN json_each(?6) AS p
         CROSS JOIN bucket AS b
         CROSS JOIN holdfast_task AS t
            ON (t.run, t.unit) = (
               SELECT run, unit FROM holdfast_task INDEXED BY holdfast_task_due
                WHERE owner IS NULL AND run_at IS NOT NULL
                  AND queue = q.value AND workflow = w.value AND pin = p.value AND bucket = b.n
                ORDER BY priority, run_at LIMIT 1)
         WHERE q.value NOT IN (SELECT name FROM holdfast_queue WHERE paused = 1)
        UNION ALL
        SELECT t.queue, t.workflow, t.pin, t.bucket, t.priority, t.run_at, l.due + (t.run_at <= ?3)
          FROM lane AS l
         CROSS JOIN holdfast_task AS t
            ON (t.run, t.unit) = (
               SELECT run, unit FROM holdfast_task INDEXED BY holdfast_task_due
                WHERE owner IS NULL AND run_at IS NOT NULL
                  AND queue = l.queue AND workflow = l.workflow AND pin = l.pin AND bucket = l.bucket
                  AND priority > l.priority
                ORDER BY priority, run_at LIMIT 1)
         WHERE l.due < ?4
    )
SELECT json_group_array(json_array(bucket, priority, queue, workflow, pin, run_at)) FROM lane;

-- name: due
SELECT run_at, run, unit, kind, lost, epoch, bucket, key, started_at FROM holdfast_task INDEXED BY holdfast_task_due
 WHERE owner IS NULL AND run_at IS NOT NULL
   AND queue = ?1 AND workflow = ?2 AND pin = ?3 AND bucket = ?4 AND priority = ?5 AND run_at <= ?6
 ORDER BY run_at LIMIT ?7;

-- A run that began in its turn (bucket 3) does not wait for a turn again.
-- name: claim_run
UPDATE holdfast_task SET owner = ?3, lease_until = ?4, lease_ms = NULL, epoch = epoch + 1, lost = 0,
       bucket = iif(bucket = 3, 1, bucket)
 WHERE run = ?1 AND unit = ?2;

-- name: claim_unit
UPDATE holdfast_task SET owner = ?3, lease_until = ?4, epoch = epoch + 1, lost = 0, started_at = ?5
 WHERE run = ?1 AND unit = ?2;

-- Set the version of claimed runs that have none. ?3: the workflows whose runs are pinned, as a JSON list.
-- name: set_version
UPDATE holdfast_run SET version = ?2, pinned = workflow IN (SELECT value FROM json_each(?3))
 WHERE id = ?1 AND version IS NULL
RETURNING pinned;

-- name: set_pin
UPDATE holdfast_task SET pin = ?2 WHERE run = ?1;

-- name: activate
UPDATE holdfast_run SET status = 'active', updated_at = ?2 WHERE id = ?1 AND status = 'waiting';

-- name: tasks_of_runs
SELECT run_at, run, unit, kind, lost, epoch, bucket, NULL, NULL FROM holdfast_task
 WHERE run IN (SELECT value FROM json_each(?1)) AND unit = 0;

-- name: next_expiry
SELECT min(expires_at) FROM holdfast_task WHERE expires_at IS NOT NULL AND unit = 0;

-- name: overdue
SELECT coalesce(run_at, 0), run, unit, kind, lost OR owner IS NOT NULL, epoch, bucket, NULL, NULL
  FROM holdfast_task INDEXED BY holdfast_task_expiry
 WHERE expires_at IS NOT NULL AND expires_at <= ?1 AND unit = 0 ORDER BY expires_at LIMIT ?2;

-- Clears a requested pause, which does not prevent the end of the run, and keeps other workers from claiming the run as
-- overdue before this lease expires.
-- name: postpone_expiry
UPDATE holdfast_task SET expires_at = ?3, signal = 0 WHERE run = ?1 AND unit = ?2;

-- The due units of one run. ?3 is the bucket to leave out, -1 for none.
-- name: due_units
SELECT run_at, run, unit, kind, lost, epoch, bucket, key, started_at FROM holdfast_task INDEXED BY holdfast_task_unit
 WHERE unit > 0 AND owner IS NULL AND run_at IS NOT NULL AND run = ?1 AND run_at <= ?2 AND bucket <> ?3
   AND pin IN ('', ?5)
 ORDER BY unit LIMIT ?4;

-- name: due_run
SELECT run_at, run, unit, kind, lost, epoch, bucket, NULL, NULL FROM holdfast_task
 WHERE run = ?1 AND unit = 0 AND owner IS NULL AND run_at <= ?2;

-- name: is_run_in_paused_queue
SELECT EXISTS (SELECT 1 FROM holdfast_queue AS q
                 JOIN holdfast_task AS t ON t.queue = q.name AND t.run = ?1 AND t.unit = 0 WHERE q.paused = 1);

-- name: next_due_unit
SELECT run_at FROM holdfast_task INDEXED BY holdfast_task_unit_due
 WHERE unit > 0 AND owner IS NULL AND run_at IS NOT NULL AND run = ?1 AND bucket <> ?2
 ORDER BY run_at LIMIT 1;

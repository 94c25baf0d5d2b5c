-- name: fence
SELECT json_group_array(json_array(t.run, t.unit, t.owner, t.epoch, t.signal, r.status = 'paused'))
  FROM json_each(?1) AS item
 CROSS JOIN holdfast_task AS t ON t.run = item.value ->> 0 AND t.unit = item.value ->> 1
 CROSS JOIN holdfast_run AS r ON r.id = t.run;

-- Existing facts are kept; only new ones are returned.
-- name: result
INSERT INTO holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, value, name, attempts, max_attempts,
                           timeout_ms, wake_at, event_type, event)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run, state, key, n) DO NOTHING
RETURNING run;

-- name: delete_task
DELETE FROM holdfast_task WHERE run = ?1 AND unit = ?2;

-- name: release
UPDATE holdfast_task
   SET owner = NULL, lease_until = NULL, run_at = ?3, resume_at = ?7, kind = ?4, bucket = ?5,
       missing = coalesce(?6, missing), losses = 0, lost = 0, signal = 0
 WHERE run = ?1 AND unit = ?2;

-- A unit that is inserted again continues its epochs: its START facts are kept, and an old claim never passes the fence.
-- name: insert_unit
INSERT INTO holdfast_task (run, unit, workflow, queue, bucket, kind, priority, epoch, losses, lost, signal, topics,
                           missing, key, started_at, pin)
SELECT run, ?2, workflow, queue, ?5, ?6, priority,
       coalesce((SELECT max(n) FROM holdfast_fact WHERE run = ?1 AND state = 1 AND key = ?3), 0), 0, 0, 0, '', ?4, ?3,
       (SELECT at FROM holdfast_fact WHERE run = ?1 AND state = 1 AND key = ?3 ORDER BY n DESC LIMIT 1), pin
  FROM holdfast_task WHERE run = ?1 AND unit = 0
ON CONFLICT (run, unit) DO NOTHING
RETURNING run, unit, missing;

-- name: decrement
UPDATE holdfast_task SET missing = max(missing - ?3, 0) WHERE run = ?1 AND unit = ?2
RETURNING run, unit, missing, owner, run_at, epoch, key, started_at, pin;

-- name: make_due
UPDATE holdfast_task SET run_at = ?3, kind = ?4, bucket = ?5 WHERE run = ?1 AND unit = ?2;

-- name: claim
UPDATE holdfast_task
   SET run_at = ?3, kind = ?4, bucket = ?5, owner = ?6, lease_until = ?7, epoch = ?8, started_at = ?9
 WHERE run = ?1 AND unit = ?2;

-- name: has_engine_events
SELECT EXISTS (SELECT 1 FROM holdfast_event INDEXED BY holdfast_event_engine
                WHERE run = ?1 AND n > ?2 AND delivered_at IS NULL AND type >= '@' AND type < 'A');

-- name: in_paused_queue
SELECT EXISTS (SELECT 1 FROM json_each(?1) AS item CROSS JOIN holdfast_task AS t ON t.run = item.value AND t.unit = 0
                WHERE t.queue IN (SELECT name FROM holdfast_queue WHERE paused = 1));

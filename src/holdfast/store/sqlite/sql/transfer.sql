-- name: fence
SELECT token, reason, position FROM holdfast_fence;

-- name: set_fence
INSERT INTO holdfast_fence (id, token, reason, position) VALUES (1, ?1, ?2, ?3)
ON CONFLICT (id) DO UPDATE SET token = excluded.token, reason = excluded.reason, position = excluded.position;

-- name: set_position
UPDATE holdfast_fence SET position = ?1;

-- name: set_reason
UPDATE holdfast_fence SET reason = ?1;

-- name: delete_fence
DELETE FROM holdfast_fence;

-- name: living_workers
SELECT group_concat(id, ', ') FROM holdfast_worker WHERE lease_until > ?1;

-- name: owned_tasks
SELECT count(*) FROM holdfast_task WHERE owner IS NOT NULL;

-- A permit that a run holds until its end. needs_tokens matters to permits that wait.
-- name: insert_group
INSERT OR IGNORE INTO holdfast_permit_group (limits, needs_tokens) VALUES (:limits, 1);

-- name: insert_permit
INSERT INTO holdfast_permit (run, unit, step, attempt, grp, state, priority, tag, until_end, epoch, requested_at)
SELECT :run, :unit, :step, :attempt, id, 2, :priority, 0, 1, 0, :requested_at
  FROM holdfast_permit_group WHERE limits = :limits AND needs_tokens = 1;

-- name: count_permit
INSERT INTO holdfast_limit_use (name, key, used)
SELECT item.value ->> 0, item.value ->> 1, 1 FROM json_each(:limits) AS item WHERE true
ON CONFLICT (name, key) DO UPDATE SET used = used + 1;

-- name: mark_task
UPDATE holdfast_task SET permits = 1 WHERE run = :run AND unit = :unit;

-- name: last_id
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'holdfast_run'), 0);

-- name: delete_sequence
DELETE FROM sqlite_sequence WHERE name = 'holdfast_run';

-- name: set_sequence
INSERT INTO sqlite_sequence (name, seq) VALUES ('holdfast_run', ?1);

-- name: finish_units
UPDATE holdfast_task
   SET started_at = (SELECT at FROM holdfast_fact AS f
                      WHERE f.run = holdfast_task.run AND f.state = 1 AND f.key = holdfast_task.key
                      ORDER BY n DESC LIMIT 1)
 WHERE unit > 0;

-- name: finish_replies
UPDATE holdfast_event SET replied_at = created_at WHERE reply_ok IS NOT NULL;

-- name: finish_outbox
UPDATE holdfast_outbox SET due_at = run_at
 WHERE delivered_at IS NULL AND parked_at IS NULL
   AND n = (SELECT min(n) FROM holdfast_outbox AS o
             WHERE o.run = holdfast_outbox.run AND o.delivered_at IS NULL AND o.parked_at IS NULL);

-- name: blob_triggers
SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name LIKE 'holdfast\_blob\_%' ESCAPE '\';

-- name: has_blobs
SELECT EXISTS (SELECT 1 FROM holdfast_blob);

-- The tasks of a batch that need attention: another owner or epoch (NULL: no task), losses, or a signal. ?1: the epochs
-- by run. Almost always none. One row for a whole batch: stepping through rows would release the interpreter lock once
-- per row.
-- name: fence
SELECT json_group_array(json_array(CAST(item.key AS INTEGER), t.owner, t.epoch, t.losses, t.signal))
  FROM json_each(?1) AS item LEFT JOIN holdfast_task AS t ON t.run = CAST(item.key AS INTEGER) AND t.unit = ?2
 WHERE t.epoch IS NOT item.value OR t.owner IS NOT ?3 OR t.losses <> 0 OR t.signal <> 0;

-- name: insert_fact
INSERT INTO holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, value, name, attempts, max_attempts,
                           timeout_ms, wake_at, event_type, event)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_log
INSERT INTO holdfast_log (run, n, level, category, message, data, at, step_key, attempt, is_replay)
VALUES (?1, 1 + coalesce((SELECT max(n) FROM holdfast_log WHERE run = ?1), 0), ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9);

-- name: set_started
UPDATE holdfast_run SET started_at = ?2, updated_at = ?3 WHERE id = ?1 AND started_at IS NULL;

-- name: update_task
UPDATE holdfast_task SET losses = ?4, signal = ?3 WHERE run = ?1 AND unit = ?2;

-- name: finish
UPDATE holdfast_run SET status = ?2, output = ?3, error = ?4, note = ?5, updated_at = ?6, completed_at = ?6,
                        started_at = coalesce(started_at, ?7)
 WHERE id = ?1;

-- name: delete_task
DELETE FROM holdfast_task WHERE run = ?1;

-- name: release
UPDATE holdfast_task
   SET owner = NULL, lease_until = NULL, run_at = ?3, kind = ?4, bucket = ?5, topics = ?6, losses = 0, signal = 0
 WHERE run = ?1 AND unit = ?2;

-- name: set_status
UPDATE holdfast_run SET status = ?2, updated_at = ?3, started_at = coalesce(started_at, ?4) WHERE id = ?1;

-- name: reset_losses
UPDATE holdfast_task SET losses = 0 WHERE run = ?1 AND unit = 0 AND losses <> 0;

-- Runs of a batch, and the types of their undelivered events that the turns have not seen. ?1: the last seen numbers by
-- run.
-- name: unseen_types
SELECT json_group_array(json_array(e.run, e.type))
  FROM json_each(?1) AS item CROSS JOIN holdfast_event AS e INDEXED BY holdfast_event_undelivered
    ON e.run = CAST(item.key AS INTEGER) AND e.n > item.value AND e.delivered_at IS NULL;

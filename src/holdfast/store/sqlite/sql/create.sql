-- name: last_id
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'holdfast_run'), 0);

-- Retention may have deleted the first run of an instance that has later runs.
-- name: insert_run
INSERT INTO holdfast_run (id, instance, number, workflow, instance_id, current, kind, status, params, queue, priority,
                          seed, created_at, updated_at, parent, parent_run, parent_close, options, memo, search,
                          version, pinned)
SELECT ?1, ?2, ?3, ?4, ?5, 1, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20
 WHERE ?3 > 0 OR NOT EXISTS (SELECT 1 FROM holdfast_run WHERE workflow = ?4 AND instance_id = ?5)
ON CONFLICT (workflow, instance_id, number) DO NOTHING;

-- name: created_since
SELECT id FROM holdfast_run WHERE id > ?1;

-- name: insert_task
INSERT INTO holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, owner, lease_until, epoch,
                           losses, lost, signal, topics, expires_at, expiry, missing, pin)
VALUES (?1, 0, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 0, 0, 0, '', ?11, ?12, ?13, ?14);

-- name: insert_start_event
INSERT INTO holdfast_event (run, n, type, payload, created_at, sender) VALUES (?, ?, ?, ?, ?, ?);

-- name: is_open
SELECT 1 FROM holdfast_task WHERE run = ?1 AND unit = 0;

-- name: delete_exit_event
DELETE FROM holdfast_event INDEXED BY holdfast_event_type
 WHERE run = ?1 AND type = ?2 AND sender = ?3 AND delivered_at IS NULL;

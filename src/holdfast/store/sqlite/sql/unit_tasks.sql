-- name: insert_unit
INSERT INTO holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, owner, lease_until, epoch,
                           losses, lost, signal, topics, missing, key, started_at, pin)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, 0, 0, 0, '', ?12, ?13, ?14, ?15);

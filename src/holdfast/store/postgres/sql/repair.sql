-- A statement of its own: the next statement sees what the transaction that held the lock has written.
-- name: lock_source
SELECT FROM {schema}.holdfast_run WHERE id = $1 FOR NO KEY UPDATE;

-- name: lock_watched
SELECT {schema}.holdfast_lock_affected(
    NULL, ARRAY(SELECT {schema}.holdfast_run_of_pid(pid) FROM unnest($1::bytea[]) AS w (pid)));

-- name: insert
SELECT {schema}.holdfast_insert_continuation($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13);

-- name: move_undelivered
UPDATE {schema}.holdfast_event SET run = $2
 WHERE run = $1 AND delivered_at IS NULL AND (type NOT LIKE '@%' OR type = {REPLY});

-- name: set_history
UPDATE {schema}.holdfast_run SET started_at = $2, origin = $3 WHERE id = $1;

-- The copies have no dedup key: within a line, the key belongs to the event that was sent.
-- name: copy_events
INSERT INTO {schema}.holdfast_event (run, n, type, payload, created_at, sender, delivered_at, consumed_by, ask,
                                     reply_ok, reply, trace)
SELECT $2, n, type, payload, created_at, sender, delivered_at, consumed_by, ask, reply_ok, reply, trace
  FROM {schema}.holdfast_event WHERE run = $1 AND n = ANY ($3::bigint[]);

-- name: insert_facts
INSERT INTO {schema}.holdfast_fact (run, {fact.columns})
SELECT $1, {fact.columns f} FROM unnest({plain.facts.typed_arguments}) AS f ({fact.columns});

-- The last write: concurrent retries of a workflow wait for each other at the row of its tally.
-- name: set_retried
UPDATE {schema}.holdfast_run SET retried = true WHERE id = $1;

-- name: set_open_nodes
UPDATE {schema}.holdfast_task SET missing = $2 WHERE run = $1 AND unit = 0;

-- name: watch
SELECT {schema}.holdfast_watch_run({schema}.holdfast_begin($1), $2, r, $4)
  FROM {schema}.holdfast_record AS r WHERE r.run = {schema}.holdfast_run_of_pid($3);

-- name: unlink_partners
DELETE FROM {schema}.holdfast_watch WHERE target = $1;

-- name: record
SELECT * FROM {schema}.holdfast_record WHERE run = $1;

-- name: lock_instance
SELECT {schema}.holdfast_lock_current_run($1, $2);

-- name: delete_instance
SELECT {schema}.holdfast_delete_instance($1, $2);

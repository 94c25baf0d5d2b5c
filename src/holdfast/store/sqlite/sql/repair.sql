-- name: insert_fork
INSERT INTO holdfast_run (instance, workflow, instance_id, number, current, kind, status, params, queue, priority,
                          seed, created_at, updated_at, attempt, options, memo, search, forked_from)
SELECT 0, workflow, ?2, 0, 1, kind, 'active', ?3, queue, priority, seed, ?5, ?5, 1, coalesce(?4, options), memo, search,
       instance
  FROM holdfast_run WHERE id = ?1;

-- name: set_instance
UPDATE holdfast_run SET instance = id WHERE id = ?1;

-- name: copy_terms
INSERT INTO holdfast_term (workflow, key, value, instance)
SELECT workflow, key, value, ?2 FROM holdfast_term INDEXED BY holdfast_term_instance WHERE instance = ?1;

-- name: set_history
UPDATE holdfast_run SET started_at = ?2, origin = ?3 WHERE id = ?1;

-- The copies have no dedup key: within a line, the key belongs to the event that was sent.
-- name: copy_events
INSERT INTO holdfast_event (run, n, type, payload, created_at, sender, delivered_at, consumed_by, ask, reply_ok, reply,
                            replied_at, trace)
SELECT ?2, n, type, payload, created_at, sender, delivered_at, consumed_by, ask, reply_ok, reply, replied_at, trace
  FROM holdfast_event WHERE run = ?1 AND n IN (SELECT value FROM json_each(?3));

-- name: move_undelivered
UPDATE holdfast_event SET run = ?2
 WHERE run = ?1 AND delivered_at IS NULL AND (type < '@' OR type >= 'A' OR type = '@reply');

-- name: set_retried
UPDATE holdfast_run SET retried = 1 WHERE id = ?1;

-- name: set_open_nodes
UPDATE holdfast_task SET missing = ?2 WHERE run = ?1 AND unit = 0;

-- name: runs
SELECT id FROM holdfast_run WHERE workflow = ?1 AND instance_id = ?2;

-- name: delete_facts
DELETE FROM holdfast_fact WHERE run IN (SELECT value FROM json_each(?1));

-- name: delete_events
DELETE FROM holdfast_event WHERE run IN (SELECT value FROM json_each(?1));

-- name: delete_logs
DELETE FROM holdfast_log WHERE run IN (SELECT value FROM json_each(?1));

-- name: delete_outbox
DELETE FROM holdfast_outbox WHERE run IN (SELECT value FROM json_each(?1));

-- name: delete_streams
DELETE FROM holdfast_stream WHERE run IN (SELECT value FROM json_each(?1));

-- name: delete_chunks
DELETE FROM holdfast_chunk WHERE run IN (SELECT value FROM json_each(?1));

-- name: delete_watches
DELETE FROM holdfast_watch WHERE target IN (SELECT value FROM json_each(?1));

-- name: delete_watchers
DELETE FROM holdfast_watch WHERE watcher IN (SELECT value FROM json_each(?1));

-- name: delete_terms
DELETE FROM holdfast_term WHERE instance = ?1;

-- name: delete_runs_of_instance
DELETE FROM holdfast_run WHERE id IN (SELECT value FROM json_each(?1));

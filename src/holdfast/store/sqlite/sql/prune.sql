-- name: stored
SELECT coalesce((SELECT max(id) FROM holdfast_run) - (SELECT min(id) FROM holdfast_run) + 1, 0);

-- name: next_workflow
SELECT min(workflow) FROM holdfast_run WHERE current = 1 AND workflow > ?1;

-- The newest ends of runs with a status.
-- name: newest_ends
SELECT completed_at FROM holdfast_run INDEXED BY holdfast_run_ended
 WHERE workflow = ?1 AND status = ?2 AND completed_at IS NOT NULL ORDER BY completed_at DESC LIMIT ?3;

-- name: candidates
SELECT completed_at, id FROM holdfast_run INDEXED BY holdfast_run_ended
 WHERE workflow = ?1 AND status = ?2 AND completed_at IS NOT NULL AND completed_at >= ?3
   AND (completed_at > ?3 OR id > ?4) AND completed_at <= ?5
 ORDER BY completed_at, id LIMIT ?6;

-- A finished run: whether it has an unfinished parent, and whether it has outbound events that are not delivered.
-- name: run
SELECT r.id, r.instance, r.workflow, r.instance_id, r.number, r.current, coalesce(r.line, r.id),
       EXISTS (SELECT 1 FROM holdfast_run AS p WHERE p.id = r.parent_run AND p.completed_at IS NULL),
       EXISTS (SELECT 1 FROM holdfast_outbox AS o WHERE o.run = r.id AND o.delivered_at IS NULL)
  FROM holdfast_run AS r WHERE r.id = ?1 AND r.completed_at IS NOT NULL;

-- name: earlier_runs
SELECT r.id, coalesce(r.line, r.id), EXISTS (SELECT 1 FROM holdfast_outbox AS o
                                              WHERE o.run = r.id AND o.delivered_at IS NULL)
  FROM holdfast_run AS r WHERE r.workflow = ?1 AND r.instance_id = ?2 AND r.number < ?3;

-- name: line_of_current
SELECT coalesce(line, id) FROM holdfast_run WHERE workflow = ?1 AND instance_id = ?2 ORDER BY number DESC LIMIT 1;

-- True if the run has too many rows to delete all of them in one transaction.
-- name: is_large
SELECT EXISTS (SELECT 1 FROM holdfast_fact WHERE run = ?1 LIMIT 1 OFFSET ?2)
    OR EXISTS (SELECT 1 FROM holdfast_log WHERE run = ?1 LIMIT 1 OFFSET ?2)
    OR EXISTS (SELECT 1 FROM holdfast_event WHERE run = ?1 LIMIT 1 OFFSET ?2)
    OR EXISTS (SELECT 1 FROM holdfast_chunk WHERE run = ?1 LIMIT 1 OFFSET ?2);

-- name: delete_run
DELETE FROM holdfast_run WHERE id = ?1;

-- name: delete_terms
DELETE FROM holdfast_term WHERE instance = ?1;

-- name: delete_facts
DELETE FROM holdfast_fact WHERE run = ?1;

-- name: delete_logs
DELETE FROM holdfast_log WHERE run = ?1;

-- name: delete_outbox
DELETE FROM holdfast_outbox WHERE run = ?1;

-- name: delete_chunks
DELETE FROM holdfast_chunk WHERE run = ?1;

-- name: delete_streams
DELETE FROM holdfast_stream WHERE run = ?1;

-- ?2: keep the events that have a key.
-- name: delete_events
DELETE FROM holdfast_event WHERE run = ?1 AND (dedup IS NULL OR NOT ?2);

-- Events whose keys were kept when their run was deleted, and whose line is not needed any more.
-- name: delete_kept_events
DELETE FROM holdfast_event
 WHERE line = ?1 AND dedup IS NOT NULL AND NOT EXISTS (SELECT 1 FROM holdfast_run WHERE id = run);

-- name: add_leftover
INSERT INTO holdfast_leftover (run, keep) VALUES (?1, ?2);

-- name: leftover
SELECT run, keep FROM holdfast_leftover ORDER BY run LIMIT 1;

-- name: delete_leftover
DELETE FROM holdfast_leftover WHERE run = ?1;

-- name: delete_some_facts
DELETE FROM holdfast_fact WHERE (run, state, key, n) IN (
    SELECT run, state, key, n FROM holdfast_fact WHERE run = ?1 ORDER BY state, key, n LIMIT ?2);

-- name: delete_some_logs
DELETE FROM holdfast_log WHERE (run, n) IN (SELECT run, n FROM holdfast_log WHERE run = ?1 ORDER BY n LIMIT ?2);

-- name: delete_some_chunks
DELETE FROM holdfast_chunk WHERE (run, name, first) IN (
    SELECT run, name, first FROM holdfast_chunk WHERE run = ?1 ORDER BY name, first LIMIT ?2);

-- name: delete_some_events
DELETE FROM holdfast_event WHERE (run, n) IN (
    SELECT run, n FROM holdfast_event WHERE run = ?1 AND (dedup IS NULL OR NOT ?3) ORDER BY n LIMIT ?2);

-- name: delete_some_outbox
DELETE FROM holdfast_outbox WHERE (run, n) IN (
    SELECT run, n FROM holdfast_outbox WHERE run = ?1 ORDER BY n LIMIT ?2);

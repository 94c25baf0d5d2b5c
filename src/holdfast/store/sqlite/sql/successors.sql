-- name: supersede
UPDATE holdfast_run SET current = 0 WHERE id = ?1;

-- name: is_in_line
SELECT coalesce(a.line, a.id) = coalesce(b.line, b.id) FROM holdfast_run AS a, holdfast_run AS b
 WHERE a.id = ?1 AND b.id = ?2;

-- name: insert_successor
INSERT INTO holdfast_run (instance, workflow, instance_id, number, current, kind, status, params, queue, priority,
                          seed, created_at, updated_at, parent, parent_run, parent_close, attempt, options, memo,
                          search, line)
SELECT instance, workflow, instance_id, number + 1, 1, kind, ?3, ?4, queue, priority, seed, created_at, ?2, parent,
       parent_run, parent_close, ?5, coalesce(?6, options), memo, search, iif(?7, coalesce(line, id), NULL)
  FROM holdfast_run WHERE id = ?1;

-- name: copy_plan
INSERT INTO holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, value, name, attempts, max_attempts,
                           timeout_ms, wake_at, event_type, event)
SELECT ?2, state, key, n, kind, at, started_at, seq, ok, value, name, attempts, max_attempts, timeout_ms, wake_at,
       event_type, event
  FROM holdfast_fact WHERE run = ?1 AND state = 3;

-- name: watch
INSERT INTO holdfast_watch (target, watcher, kind) VALUES (?1, ?2, ?3)
ON CONFLICT (target, watcher) DO UPDATE SET kind = kind | excluded.kind;

-- name: remove_flags
UPDATE holdfast_watch SET kind = kind & ~?3 WHERE target = ?1 AND watcher = ?2;

-- name: delete_empty
DELETE FROM holdfast_watch WHERE target = ?1 AND watcher = ?2 AND kind = 0;

-- name: children
SELECT workflow, instance_id, status FROM holdfast_run INDEXED BY holdfast_run_child
 WHERE parent_run = ?1 AND current = 1 ORDER BY instance LIMIT ?2;

-- name: watches
SELECT r.workflow, r.instance_id, w.kind
  FROM holdfast_watch AS w INDEXED BY holdfast_watch_watcher CROSS JOIN holdfast_run AS r ON r.id = w.target
 WHERE w.watcher = ?1 ORDER BY w.target LIMIT ?2;

-- name: watched_by
SELECT r.workflow, r.instance_id, w.kind
  FROM holdfast_watch AS w CROSS JOIN holdfast_run AS r ON r.id = w.watcher
 WHERE w.target = ?1 ORDER BY w.watcher LIMIT ?2;

-- name: forks
SELECT f.workflow, f.instance_id
  FROM holdfast_run AS r JOIN holdfast_run AS f ON f.forked_from = r.instance
 WHERE r.id = ?1 ORDER BY f.id DESC LIMIT ?2;

-- name: terminate
UPDATE holdfast_run SET status = 'terminated', note = ?2, updated_at = ?3, completed_at = ?3 WHERE id = ?1;

-- name: cancel
UPDATE holdfast_run SET status = 'cancelled', error = ?2, updated_at = ?3, completed_at = ?3 WHERE id = ?1;

-- name: insert_tombstone
INSERT INTO holdfast_fact (run, state, key, n, kind, at, started_at, ok, value, attempts)
SELECT id, 6, 'tombstone', 0, 'tombstone', ?3, ?3, 1, ?2, 0 FROM holdfast_run WHERE id = ?1 AND kind = 'graph';

-- name: delete_task
DELETE FROM holdfast_task WHERE run = ?1;

-- The runs that have watchers, watches or unfinished children. Almost always none; if there are no watches and no such
-- children at all, the first condition decides for all runs.
-- name: with_relations
SELECT json_group_array(item.value) FROM json_each(?1) AS item
 WHERE ((SELECT max(target) FROM holdfast_watch) IS NOT NULL
        OR (SELECT max(parent_run) FROM holdfast_run INDEXED BY holdfast_run_living_child
             WHERE parent_run IS NOT NULL AND completed_at IS NULL) IS NOT NULL)
   AND (EXISTS (SELECT 1 FROM holdfast_watch WHERE target = item.value)
        OR EXISTS (SELECT 1 FROM holdfast_watch INDEXED BY holdfast_watch_watcher WHERE watcher = item.value)
        OR EXISTS (SELECT 1 FROM holdfast_run INDEXED BY holdfast_run_living_child
                    WHERE parent_run = item.value AND completed_at IS NULL));

-- name: delete_own_watches
DELETE FROM holdfast_watch WHERE watcher = ?1;

-- name: move_own_watches
UPDATE holdfast_watch SET watcher = ?2 WHERE watcher = ?1;

-- name: watchers
SELECT watcher, kind FROM holdfast_watch WHERE target = ?1;

-- name: delete_watchers
DELETE FROM holdfast_watch WHERE target = ?1;

-- name: move_watchers
UPDATE holdfast_watch SET target = ?2 WHERE target = ?1;

-- name: living_children
SELECT id, parent_close, kind FROM holdfast_run INDEXED BY holdfast_run_living_child
 WHERE parent_run = ?1 AND completed_at IS NULL;

-- name: move_children
UPDATE holdfast_run INDEXED BY holdfast_run_living_child SET parent_run = ?2
 WHERE parent_run = ?1 AND completed_at IS NULL;

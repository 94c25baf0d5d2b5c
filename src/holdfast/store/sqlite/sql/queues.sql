-- name: queues
SELECT name, paused FROM holdfast_queue ORDER BY name;

-- name: paused
SELECT name FROM holdfast_queue WHERE paused = 1;

-- name: pause
INSERT INTO holdfast_queue (name, paused) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET paused = ?2;

-- name: declare
INSERT INTO holdfast_queue (name, paused, declared) VALUES (?1, ?2, ?2)
ON CONFLICT (name) DO UPDATE SET paused = ?2, declared = ?2 WHERE declared IS NOT ?2;

-- name: move_runs
UPDATE holdfast_run SET queue = ?2
 WHERE id IN (SELECT run FROM holdfast_task WHERE owner IS NULL AND queue = ?1 AND unit = 0);

-- name: move_tasks
UPDATE holdfast_task SET queue = ?2 WHERE owner IS NULL AND queue = ?1;

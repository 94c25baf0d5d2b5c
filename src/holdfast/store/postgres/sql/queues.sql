-- name: queues
SELECT name, paused FROM {schema}.holdfast_queue ORDER BY name;

-- name: pause
INSERT INTO {schema}.holdfast_queue (name, paused) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET paused = excluded.paused;

-- name: declare
INSERT INTO {schema}.holdfast_queue AS q (name, paused, declared) VALUES ($1, $2, $2)
ON CONFLICT (name) DO UPDATE SET paused = excluded.paused, declared = excluded.declared
 WHERE q.declared IS DISTINCT FROM excluded.declared;

-- name: notify
SELECT pg_notify('{channel}', $1);

-- name: withdraw
SELECT {schema}.holdfast_withdraw_queue({schema}.holdfast_begin($1), $2);

-- name: move_fair_keys
SELECT {schema}.holdfast_move_fair_keys($1, $2);

-- The tasks are locked in the order of their runs, as every write that concerns several runs does.
-- name: move
WITH task AS (
    SELECT run, unit FROM {schema}.holdfast_task WHERE owner IS NULL AND queue = $1
     ORDER BY run, unit FOR NO KEY UPDATE
), moved AS (
    UPDATE {schema}.holdfast_task AS t SET queue = $2 FROM task WHERE t.run = task.run AND t.unit = task.unit
    RETURNING t.run, t.unit
), run AS (
    UPDATE {schema}.holdfast_run AS r SET queue = $2 FROM moved WHERE moved.unit = 0 AND r.id = moved.run
    RETURNING r.id
)
SELECT count(*) FROM run;

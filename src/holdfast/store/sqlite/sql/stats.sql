-- ?1 is the present time. Each range of an index is counted on its own, and finished runs before the
-- watermark are not read.
-- name: counts
WITH
    living (status) AS (VALUES ('active'), ('waiting'), ('paused')),
    ended (status) AS (VALUES ('complete'), ('errored'), ('terminated'), ('cancelled')),
    mark (at) AS (SELECT coalesce((SELECT count FROM holdfast_tally WHERE minute = -1), 0)),
    recent (name, status, count) AS (
        SELECT w.name, e.status,
               (SELECT count(*) FROM holdfast_run AS r INDEXED BY holdfast_run_ended
                 WHERE r.completed_at IS NOT NULL AND r.workflow = w.name AND r.status = e.status
                   AND r.completed_at > mark.at)
          FROM holdfast_workflow AS w CROSS JOIN ended AS e CROSS JOIN mark
    )
SELECT 'runs', w.name, l.status,
       (SELECT count(*) FROM holdfast_run AS r INDEXED BY holdfast_run_status
         WHERE r.current = 1 AND r.workflow = w.name AND r.status = l.status), NULL
  FROM holdfast_workflow AS w CROSS JOIN living AS l
UNION ALL SELECT 'runs', name, status, count, NULL FROM recent
UNION ALL SELECT 'runs', workflow, status, count, NULL FROM holdfast_tally WHERE minute = 0
UNION ALL
SELECT 'due', queue, NULL, count(*), min(run_at) FROM holdfast_task INDEXED BY holdfast_task_due
 WHERE owner IS NULL AND run_at IS NOT NULL AND run_at <= ?1 GROUP BY queue
UNION ALL
SELECT 'running', queue, NULL, count(*), NULL FROM holdfast_task INDEXED BY holdfast_task_lease
 WHERE owner IS NOT NULL GROUP BY queue
UNION ALL SELECT 'workers_alive', NULL, NULL, count(*), NULL FROM holdfast_worker WHERE lease_until > ?1
UNION ALL
SELECT 'ended_last_minute', NULL, NULL,
       coalesce(sum((SELECT count(*) FROM holdfast_run AS r INDEXED BY holdfast_run_ended
                      WHERE r.completed_at IS NOT NULL AND r.workflow = w.name AND r.status = e.status
                        AND r.completed_at > ?1 - 60000)), 0), NULL
  FROM holdfast_workflow AS w CROSS JOIN ended AS e
UNION ALL
SELECT 'ended_last_hour', NULL, NULL,
       (SELECT coalesce(sum(count), 0) FROM recent)
       + (SELECT coalesce(sum(count), 0) FROM holdfast_tally WHERE minute > ?1 / 60000 - 60), NULL;

-- name: details
WITH
    started (since, count) AS (
        SELECT s.value, (SELECT count(*) FROM holdfast_run AS r INDEXED BY holdfast_run_created
                          WHERE r.current = 1 AND r.workflow = w.name AND r.created_at > ?1 - s.value)
          FROM holdfast_workflow AS w CROSS JOIN json_each('[60000,3600000]') AS s
    ),
    errored (name) AS (
        SELECT r.error_name FROM holdfast_workflow AS w CROSS JOIN holdfast_run AS r
            ON r.id IN (SELECT id FROM holdfast_run INDEXED BY holdfast_run_ended
                         WHERE completed_at IS NOT NULL AND workflow = w.name AND status = 'errored'
                           AND completed_at > ?1 - 3600000
                         ORDER BY completed_at DESC LIMIT 10000)
        
    )
SELECT 'started_last_minute', NULL, NULL, coalesce(sum(count), 0), NULL FROM started WHERE since = 60000
UNION ALL SELECT 'started_last_hour', NULL, NULL, coalesce(sum(count), 0), NULL FROM started WHERE since = 3600000
UNION ALL
SELECT * FROM (
    SELECT 'error', name, NULL, count(*), NULL FROM errored WHERE name IS NOT NULL
     GROUP BY name ORDER BY count(*) DESC, name LIMIT 20);

-- The steps of the latest 50 runs of each workflow and status.
-- name: steps
WITH
    latest (workflow, run) AS (
        SELECT w.name, r.id FROM holdfast_workflow AS w CROSS JOIN (VALUES ('complete'), ('errored')) AS e
         CROSS JOIN holdfast_run AS r
            ON r.id IN (SELECT id FROM holdfast_run INDEXED BY holdfast_run_ended
                         WHERE completed_at IS NOT NULL AND workflow = w.name AND status = e.column1
                           AND completed_at > ?1 - 3600000
                         ORDER BY completed_at DESC LIMIT 50)
        
    )
SELECT l.workflow, coalesce(f.name, f.key), count(*), avg(f.at - f.started_at), max(f.at - f.started_at)
  FROM latest AS l CROSS JOIN holdfast_fact AS f ON f.run = l.run AND f.state = 0 AND f.kind IN ('do', 'node')
 GROUP BY 1, 2 ORDER BY 4 DESC LIMIT 10;

-- name: mark
SELECT coalesce((SELECT count FROM holdfast_tally WHERE minute = -1), 0);

-- The end of the next part: the time before which no workflow has more than ?3 ends of one status.
-- name: part_end
WITH
    ended (status) AS (VALUES ('complete'), ('errored'), ('terminated'), ('cancelled'))
SELECT min((SELECT r.completed_at FROM holdfast_run AS r INDEXED BY holdfast_run_ended
             WHERE r.completed_at IS NOT NULL AND r.workflow = w.name AND r.status = e.status
               AND r.completed_at > ?1 AND r.completed_at <= ?2
             ORDER BY r.completed_at LIMIT 1 OFFSET ?3))
  FROM holdfast_workflow AS w CROSS JOIN ended AS e;

-- Runs that ended after ?1 and up to ?2, in all (minute 0) and, after ?3, by minute.
-- name: add
WITH
    ended (status) AS (VALUES ('complete'), ('errored'), ('terminated'), ('cancelled')),
    part (workflow, status, completed_at) AS (
        SELECT r.workflow, r.status, r.completed_at
          FROM holdfast_workflow AS w CROSS JOIN ended AS e CROSS JOIN holdfast_run AS r INDEXED BY holdfast_run_ended
            ON r.completed_at IS NOT NULL AND r.workflow = w.name AND r.status = e.status
           AND r.completed_at > ?1 AND r.completed_at <= ?2
        
    )
INSERT INTO holdfast_tally (minute, workflow, status, count)
SELECT 0, workflow, status, count(*) FROM part GROUP BY workflow, status
UNION ALL
SELECT completed_at / 60000, workflow, status, count(*) FROM part WHERE completed_at > ?3 GROUP BY 1, 2, 3
ON CONFLICT (minute, workflow, status) DO UPDATE SET count = count + excluded.count;

-- name: move_mark
INSERT INTO holdfast_tally VALUES (-1, '', '', ?1)
ON CONFLICT (minute, workflow, status) DO UPDATE SET count = excluded.count;

-- name: delete_old
DELETE FROM holdfast_tally WHERE minute BETWEEN 1 AND ?1;

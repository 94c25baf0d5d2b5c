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
UNION ALL SELECT 'runs', workflow, status, -count, NULL FROM holdfast_tally WHERE minute = -2
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
       + (SELECT coalesce(sum(count), 0) FROM holdfast_tally
           WHERE minute > ?1 / 60000 - 60 AND status <> 'started'), NULL;

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

-- The steps of the latest 50 runs of each workflow and status: the slowest ten, and for each workflow all its steps (NULL).
-- Percentiles are nearest ranks.
-- name: steps
WITH
    latest (workflow, run) AS (
        SELECT w.name, r.id FROM holdfast_workflow AS w CROSS JOIN (VALUES ('complete'), ('errored')) AS e
         CROSS JOIN holdfast_run AS r
            ON r.id IN (SELECT id FROM holdfast_run INDEXED BY holdfast_run_ended
                         WHERE completed_at IS NOT NULL AND workflow = w.name AND status = e.column1
                           AND completed_at > ?1 - 3600000
                         ORDER BY completed_at DESC LIMIT 50)
    ),
    took (workflow, step, ms) AS (
        SELECT l.workflow, coalesce(f.name, f.key), f.at - f.started_at
          FROM latest AS l CROSS JOIN holdfast_fact AS f ON f.run = l.run AND f.state = 0 AND f.kind IN ('do', 'node')
    ),
    ranked AS MATERIALIZED (
        SELECT workflow, step, ms,
               cume_dist() OVER (PARTITION BY workflow, step ORDER BY ms) AS of_step,
               cume_dist() OVER (PARTITION BY workflow ORDER BY ms) AS of_workflow
          FROM took
    )
SELECT * FROM (
    SELECT workflow, step, count(*), avg(ms), max(ms), min(ms) FILTER (WHERE of_step >= 0.5),
           min(ms) FILTER (WHERE of_step >= 0.95)
      FROM ranked GROUP BY workflow, step ORDER BY 4 DESC LIMIT 10)
UNION ALL
SELECT workflow, NULL, count(*), avg(ms), max(ms), min(ms) FILTER (WHERE of_workflow >= 0.5),
       min(ms) FILTER (WHERE of_workflow >= 0.95)
  FROM ranked GROUP BY workflow;

-- Reasons for attention: kind, workflow, name, version, number of runs, first and last time, one of the runs. Of each
-- workflow the latest 1,000 runs that errored within a day, and 1,000 paused runs, are read, and all tasks.
-- name: attention
SELECT 'errored', r.workflow, r.error_name, r.version, count(*), min(r.completed_at), max(r.completed_at), max(r.id)
  FROM holdfast_workflow AS w CROSS JOIN holdfast_run AS r
    ON r.id IN (SELECT id FROM holdfast_run INDEXED BY holdfast_run_ended
                 WHERE completed_at IS NOT NULL AND workflow = w.name AND status = 'errored'
                   AND completed_at > ?1 - 86400000
                 ORDER BY completed_at DESC LIMIT 1000)
 WHERE +r.current = 1 GROUP BY r.workflow, r.error_name, r.version  -- no automatic index
UNION ALL
SELECT 'paused', r.workflow, r.note, NULL, count(*), min(r.updated_at), max(r.updated_at), max(r.id)
  FROM holdfast_workflow AS w CROSS JOIN holdfast_run AS r
    ON r.id IN (SELECT id FROM holdfast_run INDEXED BY holdfast_run_status
                 WHERE current = 1 AND workflow = w.name AND status = 'paused'
                 ORDER BY instance DESC LIMIT 1000)
 WHERE r.note IS NOT NULL GROUP BY r.workflow, r.note
UNION ALL
SELECT 'due', workflow, queue, pin, count(*), min(run_at), max(run_at), min(run)
  FROM holdfast_task INDEXED BY holdfast_task_due
 WHERE owner IS NULL AND run_at IS NOT NULL AND run_at <= ?1 - 60000 GROUP BY workflow, queue, pin
UNION ALL
SELECT 'lost', workflow, NULL, NULL, count(*), NULL, NULL, min(run) FROM holdfast_task WHERE losses >= 2 GROUP BY workflow
UNION ALL
SELECT 'failing', t.workflow, f.key, NULL, count(DISTINCT t.run), min(f.at), max(f.at), min(t.run)
  FROM holdfast_task AS t CROSS JOIN holdfast_fact AS f ON f.run = t.run AND f.state = 2 AND f.n >= 3
 WHERE t.kind = 1 AND t.owner IS NULL AND t.run_at > ?1
   AND NOT EXISTS (SELECT 1 FROM holdfast_fact AS d WHERE d.run = f.run AND d.state = 0 AND d.key = f.key AND d.n = 0)
 GROUP BY t.workflow, f.key
UNION ALL
SELECT 'outbox', r.workflow, o.type, NULL, count(DISTINCT o.run), min(o.parked_at), max(o.parked_at), min(o.run)
  FROM holdfast_outbox AS o INDEXED BY holdfast_outbox_parked CROSS JOIN holdfast_run AS r ON r.id = o.run
 WHERE o.parked_at IS NOT NULL GROUP BY r.workflow, o.type;

-- Starts and ends by minute after ?1: what, workflow, minute, number of runs.
-- name: minutes
WITH
    ended (status) AS (VALUES ('complete'), ('errored'), ('terminated'), ('cancelled')),
    mark (at) AS (SELECT max(?1, coalesce((SELECT count FROM holdfast_tally WHERE minute = -1), 0)))
SELECT status, workflow, minute, count FROM holdfast_tally WHERE minute >= ?1 / 60000
UNION ALL
SELECT e.status, w.name, r.completed_at / 60000, count(*)
  FROM holdfast_workflow AS w CROSS JOIN ended AS e CROSS JOIN mark CROSS JOIN holdfast_run AS r INDEXED BY holdfast_run_ended
    ON r.completed_at IS NOT NULL AND r.workflow = w.name AND r.status = e.status AND r.completed_at > mark.at
 GROUP BY e.status, w.name, r.completed_at / 60000
UNION ALL
SELECT 'started', w.name, r.created_at / 60000, count(*)
  FROM holdfast_workflow AS w CROSS JOIN mark CROSS JOIN holdfast_run AS r INDEXED BY holdfast_run_created
    ON r.current = 1 AND r.workflow = w.name AND r.created_at > mark.at
 GROUP BY w.name, r.created_at / 60000;

-- name: mark
SELECT coalesce((SELECT count FROM holdfast_tally WHERE minute = -1), 0);

-- The end of the next part: the time before which no workflow has more than ?3 ends of one status, nor, after ?4, starts.
-- name: part_end
WITH
    ended (status) AS (VALUES ('complete'), ('errored'), ('terminated'), ('cancelled'))
SELECT min(at) FROM (
    SELECT (SELECT r.completed_at FROM holdfast_run AS r INDEXED BY holdfast_run_ended
             WHERE r.completed_at IS NOT NULL AND r.workflow = w.name AND r.status = e.status
               AND r.completed_at > ?1 AND r.completed_at <= ?2
             ORDER BY r.completed_at LIMIT 1 OFFSET ?3) AS at
      FROM holdfast_workflow AS w CROSS JOIN ended AS e
    UNION ALL
    SELECT (SELECT r.created_at FROM holdfast_run AS r INDEXED BY holdfast_run_created
             WHERE r.current = 1 AND r.workflow = w.name AND r.created_at > max(?1, ?4) AND r.created_at <= ?2
             ORDER BY r.created_at LIMIT 1 OFFSET ?3)
      FROM holdfast_workflow AS w);

-- Runs that ended after ?1 and up to ?2, in all (minute 0) and, after ?3, by minute; instances that were started, by
-- minute.
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
UNION ALL
SELECT r.created_at / 60000, w.name, 'started', count(*)
  FROM holdfast_workflow AS w CROSS JOIN holdfast_run AS r INDEXED BY holdfast_run_created
    ON r.current = 1 AND r.workflow = w.name AND r.created_at > max(?1, ?3) AND r.created_at <= ?2
 GROUP BY w.name, r.created_at / 60000
ON CONFLICT (minute, workflow, status) DO UPDATE SET count = count + excluded.count;

-- name: move_mark
INSERT INTO holdfast_tally VALUES (-1, '', '', ?1)
ON CONFLICT (minute, workflow, status) DO UPDATE SET count = excluded.count;

-- Counts by minute of the hour before ?1: they are added up by hour, with those of earlier hours.
-- name: has_minutes
SELECT EXISTS (SELECT 1 FROM holdfast_tally WHERE minute > ?1 - 60 AND minute < ?1);

-- name: add_up_hours
INSERT INTO holdfast_tally (minute, workflow, status, count)
SELECT minute / 60 * 60, workflow, status, sum(count) FROM holdfast_tally
 WHERE minute BETWEEN 1 AND ?1 - 1 AND minute % 60 <> 0 GROUP BY 1, 2, 3
ON CONFLICT (minute, workflow, status) DO UPDATE SET count = count + excluded.count;

-- name: delete_minutes
DELETE FROM holdfast_tally WHERE minute BETWEEN 1 AND ?1 - 1 AND minute % 60 <> 0;

-- name: delete_old
DELETE FROM holdfast_tally WHERE minute BETWEEN 1 AND ?1;

-- Each range of an index is counted on its own, and finished runs before the watermark are not read.
-- name: counts
WITH clock AS MATERIALIZED (SELECT {schema}.holdfast_begin($1) AS now),
     workflow AS MATERIALIZED (SELECT unnest({schema}.holdfast_workflows()) AS name),
     mark AS MATERIALIZED (
        SELECT coalesce((SELECT count FROM {schema}.holdfast_tally WHERE minute = -1), 0) AS at),
     recent AS MATERIALIZED (
        SELECT w.name, e.status,
               (SELECT count(*) FROM {schema}.holdfast_run AS r
                 WHERE r.completed_at IS NOT NULL AND r.workflow = w.name AND r.status = e.status
                   AND r.completed_at > mark.at) AS count,
               (SELECT count(*) FROM {schema}.holdfast_run AS r
                 WHERE r.completed_at IS NOT NULL AND r.workflow = w.name AND r.status = e.status
                   AND r.completed_at > clock.now - 60000) AS last_minute
          FROM workflow AS w
         CROSS JOIN unnest(ARRAY[{Status.COMPLETE}, {Status.ERRORED}, {Status.TERMINATED}, {Status.CANCELLED}])
               AS e (status)
         CROSS JOIN mark CROSS JOIN clock)
SELECT 'at', NULL::text, NULL::text, now, NULL::bigint FROM clock
UNION ALL
SELECT 'runs', w.name, s.status,
       (SELECT count(*) FROM {schema}.holdfast_run AS r
         WHERE r.current AND r.workflow = w.name AND r.status = s.status), NULL
  FROM workflow AS w CROSS JOIN unnest(ARRAY[{Status.ACTIVE}, {Status.WAITING}, {Status.PAUSED}]) AS s (status)
UNION ALL SELECT 'runs', name, status, count, NULL FROM recent
UNION ALL SELECT 'runs', workflow, status, count, NULL FROM {schema}.holdfast_tally WHERE minute = 0
UNION ALL SELECT 'runs', workflow, status, -count, NULL FROM {schema}.holdfast_tally WHERE minute = -2
UNION ALL
SELECT 'due', t.queue, NULL, count(*), min(t.run_at) FROM {schema}.holdfast_task AS t CROSS JOIN clock
 WHERE t.owner IS NULL AND t.run_at IS NOT NULL AND t.run_at <= clock.now GROUP BY t.queue
UNION ALL
SELECT 'running', queue, NULL, count(*), NULL FROM {schema}.holdfast_task WHERE owner IS NOT NULL GROUP BY queue
UNION ALL
SELECT 'workers_alive', NULL, NULL, count(*), NULL FROM {schema}.holdfast_worker CROSS JOIN clock
 WHERE host IS NOT NULL AND lease_until > clock.now
UNION ALL SELECT 'ended_last_minute', NULL, NULL, coalesce(sum(last_minute), 0)::bigint, NULL FROM recent
UNION ALL
SELECT 'ended_last_hour', NULL, NULL,
       (SELECT coalesce(sum(count), 0) FROM recent)::bigint
       + (SELECT coalesce(sum(t.count), 0) FROM {schema}.holdfast_tally AS t, clock
           WHERE t.minute > clock.now / 60000 - 60 AND t.status <> 'started')::bigint, NULL;

-- name: details
WITH clock AS MATERIALIZED (SELECT {schema}.holdfast_begin($1) AS now),
     workflow AS MATERIALIZED (SELECT unnest({schema}.holdfast_workflows()) AS name),
     started AS (
        SELECT s.since, (SELECT count(*) FROM {schema}.holdfast_run AS r
                          WHERE r.current AND r.workflow = w.name AND r.created_at > clock.now - s.since) AS count
          FROM workflow AS w CROSS JOIN unnest(ARRAY[60000, 3600000]) AS s (since) CROSS JOIN clock),
     errored AS (
        SELECT e.error_name AS name FROM workflow AS w CROSS JOIN clock CROSS JOIN LATERAL (
            SELECT r.error_name FROM {schema}.holdfast_run AS r
             WHERE r.completed_at IS NOT NULL AND r.workflow = w.name AND r.status = {Status.ERRORED}
               AND r.completed_at > clock.now - 3600000
             ORDER BY r.completed_at DESC LIMIT 10000) AS e)
SELECT 'started_last_minute', NULL::text, NULL::text, coalesce(sum(count), 0)::bigint, NULL::bigint
  FROM started WHERE since = 60000
UNION ALL
SELECT 'started_last_hour', NULL, NULL, coalesce(sum(count), 0)::bigint, NULL FROM started WHERE since = 3600000
UNION ALL
(SELECT 'error', name, NULL, count(*), NULL FROM errored WHERE name IS NOT NULL
  GROUP BY name ORDER BY count(*) DESC, name LIMIT 20);

-- The steps of the latest 50 runs of each workflow and status: the slowest ten, and for each workflow all its steps (NULL).
-- Percentiles are nearest ranks.
-- name: steps
WITH clock AS MATERIALIZED (SELECT {schema}.holdfast_begin($1) AS now),
     took AS (
        SELECT l.workflow, coalesce(f.name, f.key) AS step, f.at - f.started_at AS ms
          FROM (SELECT w.name AS workflow, r.id AS run
                  FROM unnest({schema}.holdfast_workflows()) AS w (name)
                 CROSS JOIN unnest(ARRAY[{Status.COMPLETE}, {Status.ERRORED}]) AS e (status)
                 CROSS JOIN clock
                 CROSS JOIN LATERAL (
                    SELECT id FROM {schema}.holdfast_run
                     WHERE completed_at IS NOT NULL AND workflow = w.name AND status = e.status
                       AND completed_at > clock.now - 3600000
                     ORDER BY completed_at DESC LIMIT 50) AS r) AS l
         CROSS JOIN LATERAL (
            SELECT name, key, at, started_at FROM {schema}.holdfast_fact
             WHERE run = l.run AND state = {FactState.RESULT} AND kind IN ({StepType.DO}, {StepType.NODE})) AS f),
     ranked AS MATERIALIZED (
        SELECT workflow, step, ms,
               cume_dist() OVER (PARTITION BY workflow, step ORDER BY ms) AS of_step,
               cume_dist() OVER (PARTITION BY workflow ORDER BY ms) AS of_workflow
          FROM took)
(SELECT workflow, step, count(*), avg(ms)::float8, max(ms), min(ms) FILTER (WHERE of_step >= 0.5),
        min(ms) FILTER (WHERE of_step >= 0.95)
   FROM ranked GROUP BY workflow, step ORDER BY 4 DESC LIMIT 10)
UNION ALL
SELECT workflow, NULL, count(*), avg(ms)::float8, max(ms), min(ms) FILTER (WHERE of_workflow >= 0.5),
       min(ms) FILTER (WHERE of_workflow >= 0.95)
  FROM ranked GROUP BY workflow;

-- Reasons for attention: kind, workflow, name, version, number of runs, first and last time, one of the runs. Of each
-- workflow the latest 1,000 runs that errored within a day, and 1,000 paused runs, are read, and all tasks.
-- name: attention
WITH clock AS MATERIALIZED (SELECT {schema}.holdfast_begin($1) AS now),
     workflow AS MATERIALIZED (SELECT unnest({schema}.holdfast_workflows()) AS name)
SELECT {Status.ERRORED}, w.name, convert_to(r.error_name, 'UTF8'), r.version, count(*), min(r.completed_at),
       max(r.completed_at), max(r.id)
  FROM workflow AS w CROSS JOIN clock CROSS JOIN LATERAL (
        SELECT error_name, version, completed_at, id, current FROM {schema}.holdfast_run
         WHERE completed_at IS NOT NULL AND workflow = w.name AND status = {Status.ERRORED}
           AND completed_at > clock.now - 86400000
         ORDER BY completed_at DESC LIMIT 1000) AS r
 WHERE r.current GROUP BY w.name, r.error_name, r.version
UNION ALL
SELECT {Status.PAUSED}, w.name, r.note, NULL, count(*), min(r.updated_at), max(r.updated_at), max(r.id)
  FROM workflow AS w CROSS JOIN LATERAL (
        SELECT note, updated_at, id FROM {schema}.holdfast_run
         WHERE current AND workflow = w.name AND status = {Status.PAUSED} ORDER BY instance DESC LIMIT 1000) AS r
 WHERE r.note IS NOT NULL GROUP BY w.name, r.note
UNION ALL
SELECT 'due', t.workflow, convert_to(t.queue, 'UTF8'), t.pin, count(*), min(t.run_at), max(t.run_at), min(t.run)
  FROM {schema}.holdfast_task AS t CROSS JOIN clock
 WHERE t.owner IS NULL AND t.run_at IS NOT NULL AND t.run_at <= clock.now - 60000 GROUP BY t.workflow, t.queue, t.pin
UNION ALL
SELECT 'lost', workflow, NULL, NULL, count(*), NULL, NULL, min(run)
  FROM {schema}.holdfast_task WHERE losses >= 2 GROUP BY workflow
UNION ALL
SELECT 'failing', t.workflow, f.key, NULL, count(DISTINCT t.run), min(f.at), max(f.at), min(t.run)
  FROM clock CROSS JOIN {schema}.holdfast_task AS t CROSS JOIN LATERAL (
        SELECT key, at FROM {schema}.holdfast_fact AS g
         WHERE g.run = t.run AND g.state = {FactState.FAILURE} AND g.n >= 3
           AND NOT EXISTS (SELECT FROM {schema}.holdfast_fact AS d
                            WHERE d.run = g.run AND d.state = {FactState.RESULT} AND d.key = g.key AND d.n = 0)) AS f
 WHERE t.kind = {TaskKind.RETRY} AND t.owner IS NULL AND t.run_at > clock.now
 GROUP BY t.workflow, f.key
UNION ALL
SELECT 'outbox', r.workflow, o.type, NULL, count(DISTINCT o.run), min(o.parked_at), max(o.parked_at), min(o.run)
  FROM {schema}.holdfast_outbox AS o JOIN {schema}.holdfast_run AS r ON r.id = o.run
 WHERE o.parked_at IS NOT NULL GROUP BY r.workflow, o.type;

-- Starts and ends by minute in the last $2 minutes: what, workflow, minute, number of runs.
-- name: minutes
WITH clock AS MATERIALIZED (SELECT {schema}.holdfast_begin($1) - $2::bigint * 60000 AS since),
     workflow AS MATERIALIZED (SELECT unnest({schema}.holdfast_workflows()) AS name),
     mark AS MATERIALIZED (
        SELECT greatest(since, coalesce((SELECT count FROM {schema}.holdfast_tally WHERE minute = -1), 0)) AS at
          FROM clock)
SELECT t.status, t.workflow, t.minute, t.count
  FROM {schema}.holdfast_tally AS t CROSS JOIN clock WHERE t.minute >= clock.since / 60000
UNION ALL
SELECT e.status, w.name, r.minute, r.count
  FROM workflow AS w
 CROSS JOIN unnest(ARRAY[{Status.COMPLETE}, {Status.ERRORED}, {Status.TERMINATED}, {Status.CANCELLED}]) AS e (status)
 CROSS JOIN mark CROSS JOIN LATERAL (
        SELECT completed_at / 60000 AS minute, count(*) AS count FROM {schema}.holdfast_run
         WHERE completed_at IS NOT NULL AND workflow = w.name AND status = e.status AND completed_at > mark.at
         GROUP BY 1) AS r
UNION ALL
SELECT 'started', w.name, r.minute, r.count
  FROM workflow AS w CROSS JOIN mark CROSS JOIN LATERAL (
        SELECT created_at / 60000 AS minute, count(*) AS count FROM {schema}.holdfast_run
         WHERE current AND workflow = w.name AND created_at > mark.at GROUP BY 1) AS r;

-- name: tally
SELECT {schema}.holdfast_count_ended($1, $2, $3, $4);

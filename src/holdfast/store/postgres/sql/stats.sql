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
           WHERE t.minute > clock.now / 60000 - 60)::bigint, NULL;

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

-- The steps of the latest 50 runs of each workflow and status.
-- name: steps
WITH clock AS MATERIALIZED (SELECT {schema}.holdfast_begin($1) AS now)
SELECT l.workflow, coalesce(f.name, f.key), count(*), avg(f.at - f.started_at)::float8, max(f.at - f.started_at)
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
     WHERE run = l.run AND state = {FactState.RESULT} AND kind IN ({StepType.DO}, {StepType.NODE})) AS f
 GROUP BY 1, 2 ORDER BY 4 DESC LIMIT 10;

-- name: tally
SELECT {schema}.holdfast_count_ended($1, $2, $3, $4);

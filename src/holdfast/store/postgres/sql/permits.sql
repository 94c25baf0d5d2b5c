-- name: limits
SELECT name, concurrency, rate_count, rate_ms, burst, fair, weights, declared
  FROM {schema}.holdfast_limit ORDER BY name;

-- name: lock
SELECT {schema}.holdfast_lock_permits();

-- name: set_limit
INSERT INTO {schema}.holdfast_limit AS l (name, concurrency, rate_count, rate_ms, burst, fair, weights, declared)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (name) DO UPDATE
   SET concurrency = excluded.concurrency, rate_count = excluded.rate_count, rate_ms = excluded.rate_ms,
       burst = excluded.burst, fair = excluded.fair, weights = excluded.weights,
       declared = coalesce(excluded.declared, l.declared);

-- A limit without any use, such as one with a concurrency of 0, has no row of its own yet.
-- name: mark_freed
WITH freed AS (
    INSERT INTO {schema}.holdfast_limit_use (name, key, freed)
    SELECT DISTINCT name, key, true FROM {schema}.holdfast_permit_group WHERE waiting > 0 AND name = $1
    ON CONFLICT (name, key) DO UPDATE SET freed = true)
SELECT pg_notify('{channel}', 'permits');

-- The use of a limit, and the permits that wait at it: their number, and the time of the oldest request. Each group is
-- read by the first permit of each of its priorities, in the order of the requests, so the cost does not grow with the
-- waiting permits.
-- name: use_of_limit
WITH RECURSIVE head (grp, waiting, priority, requested_at) AS (
    SELECT g.id, g.waiting, g.head_priority, p.requested_at
      FROM {schema}.holdfast_permit_group AS g
     CROSS JOIN LATERAL (SELECT requested_at FROM {schema}.holdfast_permit WHERE id = g.head LIMIT 1) AS p
     WHERE g.waiting > 0 AND g.name = $1 AND ($2::text IS NULL OR g.key = $2)
    UNION ALL
    SELECT h.grp, h.waiting, p.priority, p.requested_at
      FROM head AS h
     CROSS JOIN LATERAL (
           SELECT n.priority, n.requested_at FROM {schema}.holdfast_permit AS n
            WHERE n.grp = h.grp AND n.state = {PermitState.WAITING} AND n.priority > h.priority
            ORDER BY n.priority, n.id LIMIT 1) AS p
     WHERE h.waiting > 1
)
SELECT coalesce(sum(used), 0)::bigint, count(*) FILTER (WHERE used > 0), coalesce(max(tat), 0),
       (SELECT coalesce(sum(waiting), 0)::bigint FROM {schema}.holdfast_permit_group
         WHERE waiting > 0 AND name = $1 AND ($2::text IS NULL OR key = $2)),
       (SELECT min(requested_at) FROM head),
       {schema}.holdfast_begin($3)
  FROM {schema}.holdfast_limit_use WHERE name = $1 AND ($2::text IS NULL OR key = $2);

-- The keys of a limit: key, permits in use, waiting permits, number of keys, time of the oldest waiting request (see
-- use_of_limit).
-- name: keys
SELECT f.*, (WITH RECURSIVE head (grp, waiting, priority, requested_at) AS (
                 SELECT g.id, g.waiting, g.head_priority, p.requested_at
                   FROM {schema}.holdfast_permit_group AS g
                  CROSS JOIN LATERAL (
                        SELECT requested_at FROM {schema}.holdfast_permit WHERE id = g.head LIMIT 1) AS p
                  WHERE g.waiting > 0 AND g.name = $1 AND g.key = f.key
                 UNION ALL
                 SELECT h.grp, h.waiting, p.priority, p.requested_at
                   FROM head AS h
                  CROSS JOIN LATERAL (
                        SELECT n.priority, n.requested_at FROM {schema}.holdfast_permit AS n
                         WHERE n.grp = h.grp AND n.state = {PermitState.WAITING} AND n.priority > h.priority
                         ORDER BY n.priority, n.id LIMIT 1) AS p
                  WHERE h.waiting > 1)
             SELECT min(requested_at) FROM head)
  FROM (SELECT key, sum(used)::bigint, sum(waiting)::bigint, count(*) OVER ()
          FROM (SELECT key, used, 0 AS waiting FROM {schema}.holdfast_limit_use WHERE name = $1 AND used > 0
                UNION ALL
                SELECT key, 0, waiting FROM {schema}.holdfast_permit_group WHERE waiting > 0 AND name = $1) AS each
         GROUP BY key ORDER BY 3 DESC, 2 DESC, key LIMIT $2) AS f
 ORDER BY 3 DESC, 2 DESC, 1;

-- name: exchange
SELECT * FROM {schema}.holdfast_exchange_permits($1, $2, $3, $4, {exchange.arguments});

-- name: positions
SELECT p.step, g.name, g.key, u.used, l.concurrency,
       (SELECT count(*) FROM (SELECT FROM {schema}.holdfast_permit AS q
                               WHERE q.grp = p.grp AND q.state = {PermitState.WAITING}
                                 AND (q.priority, q.id) < (p.priority, p.id) LIMIT $2) AS before),
       g.waiting, u.ready_at
  FROM {schema}.holdfast_permit AS p
  JOIN {schema}.holdfast_permit_group AS g ON g.id = p.grp
  LEFT JOIN {schema}.holdfast_limit_use AS u ON u.name = g.name AND u.key = g.key
  LEFT JOIN {schema}.holdfast_limit AS l ON l.name = g.name
 WHERE p.run = $1 AND p.state = {PermitState.WAITING} ORDER BY p.id LIMIT 10;

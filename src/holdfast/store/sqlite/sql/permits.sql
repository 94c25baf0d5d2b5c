-- name: limits
SELECT name, concurrency, rate_count, rate_ms, burst, fair, weights, declared FROM holdfast_limit ORDER BY name;

-- name: set_limit
INSERT INTO holdfast_limit (name, concurrency, rate_count, rate_ms, burst, fair, weights, declared)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (name) DO UPDATE
   SET concurrency = excluded.concurrency, rate_count = excluded.rate_count, rate_ms = excluded.rate_ms,
       burst = excluded.burst, fair = excluded.fair, weights = excluded.weights,
       declared = coalesce(excluded.declared, declared);

-- A limit without any use, such as one with a concurrency of 0, has no row of its own yet.
-- name: mark_freed
INSERT INTO holdfast_limit_use (name, key, freed)
SELECT name, key, 1 FROM holdfast_permit_group WHERE waiting > 0 AND name = ?1 GROUP BY name, key
ON CONFLICT (name, key) DO UPDATE SET freed = 1;

-- name: use_of_limit
SELECT coalesce(sum(used), 0), count(*) FILTER (WHERE used > 0), coalesce(max(tat), 0) FROM holdfast_limit_use
 WHERE name = ?1 AND (?2 IS NULL OR key = ?2);

-- The keys of a limit: key, permits in use, waiting permits, number of keys, time of the oldest waiting request (see
-- waiting_at).
-- name: keys
SELECT f.*, (WITH RECURSIVE head (grp, waiting, priority, requested_at) AS (
                 SELECT g.id, g.waiting, g.head_priority, p.requested_at
                   FROM holdfast_permit_group AS g CROSS JOIN holdfast_permit AS p ON p.id = g.head
                  WHERE g.waiting > 0 AND g.name = ?1 AND g.key = f.key
                 UNION ALL
                 SELECT h.grp, h.waiting, p.priority, p.requested_at
                   FROM head AS h
                  CROSS JOIN holdfast_permit AS p
                     ON p.id = (SELECT n.id FROM holdfast_permit AS n
                                 WHERE n.grp = h.grp AND n.state = 0 AND n.priority > h.priority
                                 ORDER BY n.priority, n.id LIMIT 1)
                  WHERE h.waiting > 1)
             SELECT min(requested_at) FROM head)
  FROM (SELECT key, sum(used), sum(waiting), count(*) OVER ()
          FROM (SELECT key, used, 0 AS waiting FROM holdfast_limit_use WHERE name = ?1 AND used > 0
                UNION ALL SELECT key, 0, waiting FROM holdfast_permit_group WHERE waiting > 0 AND name = ?1)
         GROUP BY key ORDER BY 3 DESC, 2 DESC, key LIMIT ?2) AS f
 ORDER BY 3 DESC, 2 DESC, 1;

-- The permits that wait at a limit: their number, and the time of the oldest request. Each group is read by the first
-- permit of each of its priorities, in the order of the requests, so the cost does not grow with the waiting permits.
-- name: waiting_at
WITH RECURSIVE head (grp, waiting, priority, requested_at) AS (
    SELECT g.id, g.waiting, g.head_priority, p.requested_at
      FROM holdfast_permit_group AS g CROSS JOIN holdfast_permit AS p ON p.id = g.head
     WHERE g.waiting > 0 AND g.name = ?1 AND (?2 IS NULL OR g.key = ?2)
    UNION ALL
    SELECT h.grp, h.waiting, p.priority, p.requested_at
      FROM head AS h
     CROSS JOIN holdfast_permit AS p
        ON p.id = (SELECT n.id FROM holdfast_permit AS n WHERE n.grp = h.grp AND n.state = 0 AND n.priority > h.priority
                    ORDER BY n.priority, n.id LIMIT 1)
     WHERE h.waiting > 1
)
SELECT coalesce(sum(waiting), 0), (SELECT min(requested_at) FROM head) FROM holdfast_permit_group
 WHERE waiting > 0 AND name = ?1 AND (?2 IS NULL OR key = ?2);

-- Work for an exchange that has nothing to send: limits with room, and grants that no exchange has reported yet.
-- name: has_work
SELECT EXISTS (SELECT 1 FROM holdfast_limit_use WHERE freed = 1)
    OR EXISTS (SELECT 1 FROM holdfast_limit_use WHERE ready_at IS NOT NULL AND ready_at <= ?2)
    OR EXISTS (SELECT 1 FROM holdfast_permit WHERE state = 1 AND owner = ?1)
    OR EXISTS (SELECT 1 FROM holdfast_permit WHERE state = 1 AND owner IS NULL);

-- name: has_due
SELECT EXISTS (SELECT 1 FROM holdfast_permit WHERE state = 1 AND owner IS NULL);

-- name: next_ready
SELECT min(ready_at) FROM holdfast_limit_use WHERE ready_at IS NOT NULL;

-- name: return
DELETE FROM holdfast_permit WHERE run = ?1 AND unit = ?2 AND step = ?3 AND attempt = ?4 AND owner = ?5 AND epoch = ?6;

-- The flags of a task that this owner has claimed, and the permit of an earlier request for the same step; a permit that
-- is not held comes first. No row: the claim is lost.
-- name: find
SELECT t.permits, t.has_tokens, t.signal, p.id, p.state
  FROM holdfast_task AS t
  LEFT JOIN holdfast_permit AS p
    ON t.permits = 1 AND p.run = t.run AND p.unit = t.unit AND p.step = ?5
   AND (p.state < 2 OR p.attempt = ?6 OR p.until_end = 1)
 WHERE t.run = ?1 AND t.unit = ?2 AND t.owner = ?3 AND t.epoch = ?4
 ORDER BY p.state LIMIT 1;

-- name: adopt
UPDATE holdfast_permit SET state = ?2, owner = ?3, epoch = ?4, attempt = ?5, parked = ?6 WHERE id = ?1;

-- name: insert
INSERT INTO holdfast_permit (run, unit, step, attempt, grp, state, priority, tag, until_end, owner, epoch, parked,
                             requested_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
RETURNING id;

-- name: mark_task
UPDATE holdfast_task SET permits = 1 WHERE run = ?1 AND unit = ?2 AND permits = 0;

-- name: mark_tokens
UPDATE holdfast_task SET has_tokens = 1 WHERE run = ?1 AND unit = 0 AND has_tokens = 0;

-- Release a task whose permit has to wait; the grant makes the task due. Returns two flags: the run is paused, and the
-- queue is paused.
-- name: release
UPDATE holdfast_task
   SET owner = NULL, lease_until = NULL, run_at = NULL, lost = losses > 0, signal = 0
 WHERE run = ?1 AND unit = ?2 AND owner = ?3 AND epoch = ?4
RETURNING (SELECT status = 'paused' FROM holdfast_run WHERE id = run),
          EXISTS (SELECT 1 FROM holdfast_queue AS q WHERE q.name = queue AND q.paused = 1);

-- name: use
SELECT used, tat, pass, virtual FROM holdfast_limit_use WHERE name = ?1 AND key = ?2;

-- name: set_tat
UPDATE holdfast_limit_use SET tat = ?3 WHERE name = ?1 AND key = ?2;

-- name: take
INSERT INTO holdfast_limit_use (name, key, used, tat, pass, virtual) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (name, key) DO UPDATE SET used = used + excluded.used, tat = excluded.tat, pass = excluded.pass,
                                      virtual = excluded.virtual;

-- name: group
SELECT id, waiting FROM holdfast_permit_group WHERE limits = ?1 AND needs_tokens = ?2;

-- name: insert_group
INSERT INTO holdfast_permit_group (limits, needs_tokens, fair_name, fair_key) VALUES (?1, ?2, ?3, ?4) RETURNING id;

-- Delete some groups whose keys are not in use, and the use of these keys.
-- name: forget_groups
DELETE FROM holdfast_permit_group
 WHERE id IN (SELECT id FROM holdfast_permit_group WHERE id >= ?2 AND id <> ?1 ORDER BY id LIMIT 4) AND waiting = 0
   AND EXISTS (SELECT 1 FROM json_each(limits) AS item WHERE item.value ->> 1 <> '')
   AND NOT EXISTS (SELECT 1 FROM json_each(limits) AS item
                     JOIN holdfast_limit_use AS u ON u.name = item.value ->> 0 AND u.key = item.value ->> 1
                    WHERE u.key <> '' AND (u.used > 0 OR u.freed = 1 OR u.ready_at IS NOT NULL OR u.tat > ?3))
RETURNING limits;

-- name: forget_use
DELETE FROM holdfast_limit_use WHERE name = ?1 AND key = ?2 AND key <> '';

-- The first permit of a group begins to wait.
-- name: activate
UPDATE holdfast_permit_group
   SET waiting = 1, name = ?2, key = ?3, pass = ?4, head_priority = ?5, head = ?6, fair_name = ?7, fair_key = ?8
 WHERE id = ?1;

-- Permits that join a group with waiting permits; ?3 and ?4 are the priority and the id of the first of them.
-- name: enqueue
UPDATE holdfast_permit_group
   SET waiting = waiting + ?2,
       pass = iif(fair_name IS NULL AND ?3 < head_priority, ?5, pass),
       head = iif(?3 < head_priority, ?4, head),
       head_priority = min(head_priority, ?3)
 WHERE id = ?1;

-- Limits that may have room, each with 1 if groups wait at it.
-- name: freed
SELECT name, key, EXISTS (SELECT 1 FROM holdfast_permit_group AS g
                           WHERE g.waiting > 0 AND g.name = holdfast_limit_use.name AND g.key = holdfast_limit_use.key)
  FROM holdfast_limit_use INDEXED BY holdfast_limit_freed WHERE freed = 1
UNION
SELECT name, key, EXISTS (SELECT 1 FROM holdfast_permit_group AS g
                           WHERE g.waiting > 0 AND g.name = holdfast_limit_use.name AND g.key = holdfast_limit_use.key)
  FROM holdfast_limit_use WHERE ready_at IS NOT NULL AND ready_at <= ?1;

-- name: settle_idle
UPDATE holdfast_limit_use INDEXED BY holdfast_limit_freed SET freed = 0, ready_at = NULL
 WHERE freed = 1
   AND NOT EXISTS (SELECT 1 FROM holdfast_permit_group AS g
                    WHERE g.waiting > 0 AND g.name = holdfast_limit_use.name AND g.key = holdfast_limit_use.key);

-- name: settle_idle_rates
UPDATE holdfast_limit_use INDEXED BY holdfast_limit_ready SET ready_at = NULL
 WHERE ready_at IS NOT NULL AND ready_at <= ?1
   AND NOT EXISTS (SELECT 1 FROM holdfast_permit_group AS g
                    WHERE g.waiting > 0 AND g.name = holdfast_limit_use.name AND g.key = holdfast_limit_use.key);

-- name: settled
UPDATE holdfast_limit_use SET freed = 0, ready_at = ?3 WHERE name = ?1 AND key = ?2;

-- name: set_ready
INSERT INTO holdfast_limit_use (name, key, ready_at) VALUES (?1, ?2, ?3)
ON CONFLICT (name, key) DO UPDATE SET ready_at = excluded.ready_at;

-- The next two groups that wait at a limit. Runs that have taken their tokens come first: they do not wait for the rate.
-- name: next_group
SELECT id, limits, needs_tokens, pass, head, waiting FROM holdfast_permit_group
 WHERE waiting > 0 AND name = ?1 AND key = ?2 ORDER BY needs_tokens, pass, head_priority, head LIMIT 2;

-- name: move_group
UPDATE holdfast_permit_group SET name = ?2, key = ?3, pass = max(pass, ?4) WHERE id = ?1;

-- A permit of the worker whose exchange this is (?2, or ?3 below) is held at once.
-- name: grant
UPDATE holdfast_permit SET state = iif(owner = ?2, 2, 1) WHERE id = ?1
RETURNING run, unit, step, owner, state, attempt, epoch;

-- The first permits of a group.
-- name: grant_many
UPDATE holdfast_permit SET state = iif(owner = ?3, 2, 1)
 WHERE id IN (SELECT id FROM holdfast_permit WHERE grp = ?1 AND state = 0 ORDER BY priority, id LIMIT ?2)
RETURNING run, unit, step, owner, state, attempt, epoch;

-- name: after_grant
UPDATE holdfast_permit_group SET waiting = waiting - ?2 WHERE id = ?1;

-- name: next_head
UPDATE holdfast_permit_group
   SET (head_priority, head, pass) = (
           SELECT priority, id, iif(fair_name IS NULL, tag, pass) FROM holdfast_permit
            WHERE grp = ?1 AND state = 0 ORDER BY priority, id LIMIT 1)
 WHERE id = ?1;

-- name: set_pass
UPDATE holdfast_permit_group SET pass = ?3 WHERE fair_name = ?1 AND fair_key = ?2 AND waiting > 0;

-- Make a task without an owner due, whose permit was granted. The tasks of a paused run are due when it is resumed.
-- name: make_due
UPDATE holdfast_task SET run_at = ?3
 WHERE run = ?1 AND unit = ?2 AND owner IS NULL AND (SELECT status FROM holdfast_run WHERE id = ?1) <> 'paused';

-- Tasks of paused runs, and tasks without an owner in paused queues, wait for no permits.
-- name: withdraw
DELETE FROM holdfast_permit WHERE run = ?1 AND unit = ?2 AND state < 2;

-- name: make_queue_due
UPDATE holdfast_task SET run_at = ?2
 WHERE (run, unit) IN (SELECT run, unit FROM holdfast_permit WHERE state < 2) AND owner IS NULL AND queue = ?1;

-- name: withdraw_queue
DELETE FROM holdfast_permit
 WHERE state < 2
   AND EXISTS (SELECT 1 FROM holdfast_task AS t
                WHERE t.run = holdfast_permit.run AND t.unit = holdfast_permit.unit AND t.owner IS NULL
                  AND t.queue = ?1);

-- name: hold_granted
UPDATE holdfast_permit SET state = 2 WHERE state = 1 AND owner = ?1
RETURNING run, unit, step, attempt, epoch;

-- name: positions
SELECT p.step, g.name, g.key, g.waiting, u.used, l.concurrency, u.ready_at,
       (SELECT count(*) FROM (SELECT 1 FROM holdfast_permit AS q
                               WHERE q.grp = p.grp AND q.state = 0 AND (q.priority, q.id) < (p.priority, p.id)
                               LIMIT ?2))
  FROM holdfast_permit AS p
  JOIN holdfast_permit_group AS g ON g.id = p.grp
  LEFT JOIN holdfast_limit_use AS u ON u.name = g.name AND u.key = g.key
  LEFT JOIN holdfast_limit AS l ON l.name = g.name
 WHERE p.run = ?1 AND p.state = 0 ORDER BY p.id LIMIT 10;

-- name: any
SELECT EXISTS (SELECT 1 FROM holdfast_fair_key WHERE queue > '');

-- A start: the task gets its key, and a key that has no waiting runs gets a pass of just less than one service after the
-- lowest pass, so that it waits for at most one service of each other key.
-- name: set_key
UPDATE holdfast_task SET bucket = 3, fair_key = ?2 WHERE run = ?1 AND unit = 0;

-- name: join
INSERT INTO holdfast_fair_key (queue, workflow, key, pass, stride)
VALUES (?1, ?2, ?3, coalesce((SELECT min(pass) FROM holdfast_fair_key WHERE queue = ?1 AND workflow = ?2), 0) + 0.999 * ?4, ?4)
ON CONFLICT (queue, workflow, key) DO UPDATE SET stride = excluded.stride;

-- name: moved_keys
SELECT t.workflow, t.fair_key, coalesce(k.stride, 1.0)
  FROM holdfast_task AS t INDEXED BY holdfast_task_fair
  LEFT JOIN holdfast_fair_key AS k ON k.queue = t.queue AND k.workflow = t.workflow AND k.key = t.fair_key
 WHERE t.bucket = 3 AND t.owner IS NULL AND t.run_at IS NOT NULL AND t.queue = ?1
 GROUP BY t.workflow, t.fair_key;

-- The queues and workflows of a claim that have keys. ?1, ?2: JSON lists.
-- name: places
SELECT q.value, w.value FROM json_each(?1) AS q CROSS JOIN json_each(?2) AS w
 WHERE q.value NOT IN (SELECT name FROM holdfast_queue WHERE paused = 1)
   AND EXISTS (SELECT 1 FROM holdfast_fair_key WHERE queue = q.value AND workflow = w.value);

-- name: keys
SELECT key FROM holdfast_fair_key WHERE queue = ?1 AND workflow = ?2 ORDER BY pass LIMIT ?3;

-- name: due
SELECT run_at, run, unit, kind, lost, epoch, bucket, key, started_at FROM holdfast_task INDEXED BY holdfast_task_fair
 WHERE bucket = 3 AND owner IS NULL AND run_at IS NOT NULL AND queue = ?1 AND workflow = ?2 AND fair_key = ?3
 ORDER BY priority, run LIMIT ?4;

-- name: served
UPDATE holdfast_fair_key SET pass = pass + ?4 * stride WHERE queue = ?1 AND workflow = ?2 AND key = ?3;

-- name: leave
DELETE FROM holdfast_fair_key WHERE queue = ?1 AND workflow = ?2 AND key = ?3;

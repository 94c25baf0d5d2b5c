-- The last event and the first undelivered event of each mailbox.
-- name: bounds
SELECT json_group_array(json_array(
           item.value,
           (SELECT max(n) FROM holdfast_event WHERE run = item.value),
           (SELECT min(n) FROM holdfast_event INDEXED BY holdfast_event_undelivered
             WHERE run = item.value AND delivered_at IS NULL)))
  FROM json_each(?1) AS item;

-- name: undelivered_of_runs
SELECT e.run, e.n, e.type, e.payload, e.created_at, e.sender, e.delivered_at, e.consumed_by, e.ask, e.trace
  FROM json_each(?1) AS item
 CROSS JOIN holdfast_event AS e INDEXED BY holdfast_event_undelivered
    ON e.run = item.value AND e.delivered_at IS NULL;

-- name: last
SELECT coalesce(max(n), 0) FROM holdfast_event WHERE run = ?1;

-- name: undelivered
SELECT n, type, payload, created_at, sender, delivered_at, consumed_by, ask, trace
  FROM holdfast_event INDEXED BY holdfast_event_undelivered
 WHERE run = ?1 AND n > ?3 AND delivered_at IS NULL ORDER BY n LIMIT ?2;

-- name: undelivered_of_type
SELECT n, type, payload, created_at, sender, delivered_at, consumed_by, ask, trace
  FROM holdfast_event INDEXED BY holdfast_event_type
 WHERE run = ?1 AND n > ?3 AND delivered_at IS NULL AND type = ?4 ORDER BY n LIMIT ?2;

-- name: undelivered_engine_events
SELECT n, type, payload, created_at, sender, delivered_at, consumed_by, ask, trace
  FROM holdfast_event INDEXED BY holdfast_event_engine
 WHERE run = ?1 AND n > ?3 AND delivered_at IS NULL AND type >= '@' AND type < 'A' ORDER BY n LIMIT ?2;

-- name: undelivered_types
SELECT n, type FROM holdfast_event INDEXED BY holdfast_event_undelivered
 WHERE run = ?1 AND delivered_at IS NULL ORDER BY n;

-- name: move
UPDATE holdfast_event SET run = ?3, n = ?4 WHERE run = ?1 AND n = ?2;

-- name: deliver
UPDATE holdfast_event SET delivered_at = ?3, consumed_by = ?4 WHERE run = ?1 AND n = ?2 AND delivered_at IS NULL;

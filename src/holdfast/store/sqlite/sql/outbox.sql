-- name: insert
INSERT INTO holdfast_outbox (run, n, step, type, payload, created_at, attempts, run_at, trace, due_at)
VALUES (?1, 1 + coalesce((SELECT max(n) FROM holdfast_outbox WHERE run = ?1), 0), ?2, ?3, ?4, ?5, 0, ?5, ?6,
        iif(EXISTS (SELECT 1 FROM holdfast_outbox INDEXED BY holdfast_outbox_turn
                     WHERE run = ?1 AND due_at IS NOT NULL), NULL, ?5));

-- An event with an expired lease still has its owner; its lost delivery counts as an attempt.
-- name: due
SELECT o.run, o.n, r.workflow, r.instance_id, r.number, o.step, o.type, o.payload, o.created_at,
       o.attempts + (o.owner IS NOT NULL), o.run_at, o.error, o.delivered_at, o.parked_at, o.trace
  FROM holdfast_outbox AS o INDEXED BY holdfast_outbox_due CROSS JOIN holdfast_run AS r ON r.id = o.run
 WHERE o.due_at IS NOT NULL AND o.due_at <= ?1 ORDER BY o.due_at LIMIT ?2;

-- name: claim
UPDATE holdfast_outbox SET owner = ?3, due_at = ?4, attempts = ?5 WHERE run = ?1 AND n = ?2;

-- name: next_due
SELECT min(due_at) FROM holdfast_outbox WHERE due_at IS NOT NULL;

-- name: set_delivered
UPDATE holdfast_outbox SET delivered_at = ?4, owner = NULL, due_at = NULL WHERE run = ?1 AND n = ?2 AND owner = ?3;

-- name: retry
UPDATE holdfast_outbox SET attempts = attempts + 1, error = ?4, run_at = ?5, owner = NULL, due_at = ?5
 WHERE run = ?1 AND n = ?2 AND owner = ?3;

-- name: park
UPDATE holdfast_outbox SET attempts = attempts + 1, error = ?4, parked_at = ?5, owner = NULL, due_at = NULL
 WHERE run = ?1 AND n = ?2 AND owner = ?3;

-- name: unpark
UPDATE holdfast_outbox SET parked_at = NULL, attempts = 0, run_at = ?2 WHERE run = ?1 AND parked_at IS NOT NULL;

-- An event that is being delivered keeps its due_at.
-- name: clear_due
UPDATE holdfast_outbox INDEXED BY holdfast_outbox_turn SET due_at = NULL
 WHERE run = ?1 AND due_at IS NOT NULL AND owner IS NULL;

-- name: schedule_next
UPDATE holdfast_outbox SET due_at = run_at
 WHERE run = ?1
   AND n = (SELECT min(n) FROM holdfast_outbox INDEXED BY holdfast_outbox_left
             WHERE run = ?1 AND delivered_at IS NULL AND parked_at IS NULL)
   AND NOT EXISTS (SELECT 1 FROM holdfast_outbox INDEXED BY holdfast_outbox_turn
                    WHERE run = ?1 AND due_at IS NOT NULL);

-- name: of_run
SELECT o.run, o.n, r.workflow, r.instance_id, r.number, o.step, o.type, o.payload, o.created_at, o.attempts, o.run_at,
       o.error, o.delivered_at, o.parked_at, o.trace
  FROM holdfast_outbox AS o CROSS JOIN holdfast_run AS r ON r.id = o.run
 WHERE o.run = ?1 ORDER BY o.n;

-- name: owned
SELECT json_group_array(json_array(run, unit, epoch, signal)) FROM holdfast_task WHERE owner = ?1;

-- name: extend
UPDATE holdfast_task SET lease_until = ?2 + coalesce(lease_ms, ?3) WHERE owner = ?1;

-- name: set_lease
UPDATE holdfast_task SET lease_ms = ?5, lease_until = ?6 WHERE run = ?1 AND unit = ?2 AND owner = ?3 AND epoch = ?4;

-- name: signalled
SELECT json_group_array(json_array(run, unit, epoch, signal)) FROM holdfast_task WHERE owner = ?1 AND signal <> 0;

-- name: clear_events_signal
UPDATE holdfast_task SET signal = signal & ~1 WHERE owner = ?1 AND signal <> 0;

-- Owners are few and tasks many: one seek per owner, which then reads only expired leases.
-- name: expired
WITH RECURSIVE owners (owner) AS (
    SELECT min(owner) FROM holdfast_task WHERE owner IS NOT NULL
    UNION ALL
    SELECT (SELECT min(owner) FROM holdfast_task WHERE owner > known.owner)
      FROM owners AS known WHERE known.owner IS NOT NULL
)
SELECT json_group_array(json_array(t.run, t.unit, t.losses, t.signal))
  FROM owners CROSS JOIN holdfast_task AS t ON t.owner = owners.owner AND t.lease_until <= ?1;

-- No unit of a paused run is due.
-- name: expire
UPDATE holdfast_task
   SET owner = NULL, lease_until = NULL,
       run_at = (SELECT iif(status = 'paused', NULL, ?3) FROM holdfast_run WHERE id = ?1),
       kind = ?4, bucket = ?5, losses = ?6, lost = 1, signal = 0
 WHERE run = ?1 AND unit = ?2;

-- name: signal_of
SELECT signal FROM holdfast_task WHERE run = ?1 AND unit = ?2 AND owner = ?3 AND epoch = ?4;

-- A loss that no commit has followed yet is reported to the next owner too.
-- name: release
UPDATE holdfast_task
   SET owner = NULL, lease_until = NULL,
       run_at = (SELECT iif(status = 'paused', NULL, ?3) FROM holdfast_run WHERE id = ?1),
       lost = losses > 0, signal = 0
 WHERE run = ?1 AND unit = ?2;

-- Fenced, like every write of a turn.
-- name: record_heartbeat
INSERT INTO holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, value, name, attempts, max_attempts,
                           timeout_ms, wake_at, event_type, event)
SELECT ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21
  FROM holdfast_task WHERE run = ?1 AND unit = ?2 AND owner = ?3 AND epoch = ?4
ON CONFLICT (run, state, key, n) DO UPDATE SET at = excluded.at, value = excluded.value;

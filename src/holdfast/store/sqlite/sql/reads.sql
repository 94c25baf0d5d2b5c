-- name: current
SELECT * FROM holdfast_record WHERE workflow = ?1 AND instance_id = ?2 ORDER BY number DESC LIMIT 1;

-- name: numbered
SELECT * FROM holdfast_record WHERE workflow = ?1 AND instance_id = ?2 AND number = ?3;

-- name: record
SELECT * FROM holdfast_record WHERE run = ?1;

-- name: records
SELECT * FROM holdfast_record WHERE run IN (SELECT value FROM json_each(?1));

-- name: workflows
WITH RECURSIVE known (workflow) AS (
    SELECT min(workflow) FROM holdfast_run WHERE current = 1
    UNION ALL
    SELECT (SELECT min(workflow) FROM holdfast_run WHERE current = 1 AND workflow > k.workflow)
      FROM known AS k WHERE k.workflow IS NOT NULL
)
SELECT workflow FROM known WHERE workflow IS NOT NULL;

-- name: facts
SELECT state, key, n, kind, at, started_at, seq, ok, value, name, attempts, max_attempts, timeout_ms, wake_at,
       event_type, event
  FROM holdfast_fact WHERE run = ?1 AND state < 8 ORDER BY state, key, n;

-- name: facts_of_state
SELECT state, key, n, kind, at, started_at, seq, ok, value, name, attempts, max_attempts, timeout_ms, wake_at,
       event_type, event
  FROM holdfast_fact WHERE run = ?1 AND state = ?2 ORDER BY key, n;

-- name: facts_of_key
SELECT state, key, n, kind, at, started_at, seq, ok, value, name, attempts, max_attempts, timeout_ms, wake_at,
       event_type, event
  FROM holdfast_fact WHERE run = ?1 AND state = ?2 AND key = ?3 ORDER BY n;

-- name: events_by_number
SELECT n, type, payload, created_at, sender, delivered_at, consumed_by, ask, trace
  FROM holdfast_event WHERE run = ?1 AND n IN (SELECT value FROM json_each(?2));

-- name: log_count
SELECT count(*) FROM holdfast_log WHERE run = ?1 AND step_key IS NULL AND is_replay = 0;

-- name: events
SELECT n, type, payload, created_at, sender, delivered_at, consumed_by, ask, trace
  FROM holdfast_event WHERE run = ?1 AND n > ?2 ORDER BY n LIMIT ?3;

-- name: events_descending
SELECT n, type, payload, created_at, sender, delivered_at, consumed_by, ask, trace
  FROM holdfast_event WHERE run = ?1 AND n < ?2 ORDER BY n DESC LIMIT ?3;

-- name: logs
SELECT n, level, category, message, data, at, step_key, attempt, is_replay
  FROM holdfast_log
 WHERE run = ?1 AND n > ?2 AND (?4 IS NULL OR level = ?4) AND (?5 IS NULL OR category = ?5) ORDER BY n LIMIT ?3;

-- name: logs_descending
SELECT n, level, category, message, data, at, step_key, attempt, is_replay
  FROM holdfast_log
 WHERE run = ?1 AND n < ?2 AND (?4 IS NULL OR level = ?4) AND (?5 IS NULL OR category = ?5) ORDER BY n DESC LIMIT ?3;

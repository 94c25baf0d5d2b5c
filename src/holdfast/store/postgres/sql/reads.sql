-- name: current
SELECT * FROM {schema}.holdfast_record WHERE workflow = $1 AND instance_id = $2 ORDER BY number DESC LIMIT 1;

-- name: currents
SELECT a.ord, r.*
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS a (workflow, instance_id, ord)
 CROSS JOIN LATERAL (SELECT * FROM {schema}.holdfast_record
                      WHERE workflow = a.workflow AND instance_id = a.instance_id ORDER BY number DESC LIMIT 1) AS r;

-- name: numbered
SELECT * FROM {schema}.holdfast_record WHERE workflow = $1 AND instance_id = $2 AND number = $3;

-- name: records
SELECT * FROM {schema}.holdfast_record WHERE run = ANY ($1::bigint[]);

-- name: list
SELECT * FROM {schema}.holdfast_list($1, $2, $3, $4);

-- name: facts
SELECT state, key, n, kind, at, started_at, seq, ok, value, name, attempts, max_attempts, timeout_ms, wake_at,
       event_type, event
  FROM {schema}.holdfast_fact WHERE run = $1 ORDER BY state, key, n;

-- name: counts
SELECT (SELECT count(*) FROM {schema}.holdfast_log WHERE run = $1 AND step_key IS NULL AND NOT is_replay) AS logged,
       EXISTS (SELECT FROM {schema}.holdfast_event WHERE run = $1 AND delivered_at IS NOT NULL) AS consumed;

-- name: consumed
SELECT n, type, payload, created_at, sender, delivered_at, consumed_by
  FROM {schema}.holdfast_event WHERE run = $1 AND delivered_at IS NOT NULL;

-- name: undelivered
SELECT n, type, payload, created_at, sender, delivered_at, consumed_by
  FROM {schema}.holdfast_event WHERE run = $1 AND delivered_at IS NULL ORDER BY n;

-- name: events
SELECT n, type, payload, created_at, sender, delivered_at, consumed_by
  FROM {schema}.holdfast_event WHERE run = $1 AND n > $2 ORDER BY n LIMIT $3;

-- name: events_descending
SELECT n, type, payload, created_at, sender, delivered_at, consumed_by
  FROM {schema}.holdfast_event WHERE run = $1 AND n < $2 ORDER BY n DESC LIMIT $3;

-- name: logs
SELECT n, level, category, message, data, at, step_key, attempt, is_replay
  FROM {schema}.holdfast_log
 WHERE run = $1 AND n > $2 AND ($4::text IS NULL OR level = $4) AND ($5::text IS NULL OR category = $5)
 ORDER BY n LIMIT $3;

-- name: logs_descending
SELECT n, level, category, message, data, at, step_key, attempt, is_replay
  FROM {schema}.holdfast_log
 WHERE run = $1 AND n < $2 AND ($4::text IS NULL OR level = $4) AND ($5::text IS NULL OR category = $5)
 ORDER BY n DESC LIMIT $3;

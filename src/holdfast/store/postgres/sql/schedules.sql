-- name: first_due
SELECT {schema}.holdfast_begin($1), min(s.due_at)
  FROM unnest($2::text[]) AS w (workflow)
  CROSS JOIN LATERAL (SELECT d.due_at FROM {schema}.holdfast_schedule AS d
                       WHERE d.workflow = w.workflow AND d.due_at IS NOT NULL ORDER BY d.due_at LIMIT 1) AS s;

-- name: due
SELECT s.name, s.workflow, s.content, s.params, s.declaration, s.paused, s.note, s.created_at, s.updated_at, s.revision,
       s.next_tick, s.due_at, s.seq, s.result, s.result_n
  FROM unnest($2::text[]) AS w (workflow)
  CROSS JOIN LATERAL (SELECT * FROM {schema}.holdfast_schedule AS d
                       WHERE d.workflow = w.workflow AND d.due_at <= $1 ORDER BY d.due_at LIMIT $3) AS s
 ORDER BY s.due_at, s.name LIMIT $3;

-- name: by_names
SELECT name, workflow, content, params, declaration, paused, note, created_at, updated_at, revision,
       next_tick, due_at, seq, result, result_n
  FROM {schema}.holdfast_schedule WHERE name = ANY ($1::text[]);

-- name: page
SELECT name, workflow, content, params, declaration, paused, note, created_at, updated_at, revision,
       next_tick, due_at, seq, result, result_n
  FROM {schema}.holdfast_schedule
 WHERE name > $1 AND ($3::text[] IS NULL OR workflow = ANY ($3)) ORDER BY name LIMIT $2;

-- name: active_ticks
SELECT t.schedule, t.n, t.tick, t.cause, t.overlap, t.state, t.workflow, t.instance_id, t.at, r.status,
       CASE WHEN r.status = {Status.COMPLETE} THEN r.output END, r.id
  FROM {schema}.holdfast_tick AS t
  LEFT JOIN {schema}.holdfast_run AS r ON r.workflow = t.workflow AND r.instance_id = t.instance_id AND r.current
 WHERE t.schedule = ANY ($1::text[]) AND t.state IN ('started', 'cancelling')
UNION ALL
SELECT q.schedule, q.n, q.tick, q.cause, q.overlap, q.state, q.workflow, q.instance_id, q.at, NULL, NULL, NULL
  FROM unnest($1::text[]) AS s (name)
  CROSS JOIN LATERAL (SELECT * FROM {schema}.holdfast_tick AS t
                       WHERE t.schedule = s.name AND t.state = 'queued' ORDER BY t.n LIMIT $2) AS q
 ORDER BY 1, 2;

-- name: newest_ticks
SELECT t.schedule, t.n, t.tick, t.cause, t.overlap, t.state, t.workflow, t.instance_id, t.at, r.status, NULL::bytea, r.id
  FROM unnest($1::text[]) AS s (name)
  CROSS JOIN LATERAL (SELECT * FROM {schema}.holdfast_tick AS k WHERE k.schedule = s.name ORDER BY k.n DESC LIMIT $2) AS t
  LEFT JOIN {schema}.holdfast_run AS r ON r.workflow = t.workflow AND r.instance_id = t.instance_id AND r.current
 ORDER BY t.schedule, t.n DESC;

-- name: lock
SELECT name, revision FROM {schema}.holdfast_schedule WHERE name = ANY ($1::text[]) ORDER BY name FOR UPDATE;

-- name: insert
INSERT INTO {schema}.holdfast_schedule
       (name, workflow, content, params, declaration, paused, note, created_at, updated_at, revision, next_tick, due_at,
        seq, result, result_n)
SELECT u.name, u.workflow, u.content, u.params, u.declaration, u.paused, u.note, {schema}.holdfast_begin($1),
       {schema}.holdfast_begin($1), 1, u.next_tick, u.due_at, u.seq, u.result, u.result_n
  FROM unnest($2::text[], $3::text[], $4::bytea[], $5::bytea[], $6::text[], $7::boolean[], $8::bytea[], $9::bigint[],
              $10::bigint[], $11::bigint[], $12::bytea[], $13::bigint[])
    AS u (name, workflow, content, params, declaration, paused, note, next_tick, due_at, seq, result, result_n)
 ORDER BY u.name
    ON CONFLICT (name) DO NOTHING
RETURNING name;

-- name: update
UPDATE {schema}.holdfast_schedule AS s
   SET workflow = u.workflow, content = u.content, params = u.params, declaration = u.declaration, paused = u.paused,
       note = u.note, updated_at = {schema}.holdfast_begin($1), next_tick = u.next_tick, due_at = u.due_at, seq = u.seq,
       result = u.result, result_n = u.result_n, revision = s.revision + 1
  FROM unnest($2::text[], $3::text[], $4::bytea[], $5::bytea[], $6::text[], $7::boolean[], $8::bytea[], $9::bigint[],
              $10::bigint[], $11::bigint[], $12::bytea[], $13::bigint[])
    AS u (name, workflow, content, params, declaration, paused, note, next_tick, due_at, seq, result, result_n)
 WHERE s.name = u.name;

-- name: delete
WITH ticks AS (DELETE FROM {schema}.holdfast_tick WHERE schedule = ANY ($1::text[]))
DELETE FROM {schema}.holdfast_schedule WHERE name = ANY ($1::text[]);

-- name: write_ticks
INSERT INTO {schema}.holdfast_tick AS t (schedule, n, tick, cause, overlap, state, workflow, instance_id, at)
SELECT u.schedule, u.n, u.tick, u.cause, u.overlap, u.state, u.workflow, u.instance_id, {schema}.holdfast_begin($1)
  FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[])
    AS u (schedule, n, tick, cause, overlap, state, workflow, instance_id)
    ON CONFLICT (schedule, n) DO UPDATE SET state = excluded.state, at = excluded.at;

-- name: trim_ticks
DELETE FROM {schema}.holdfast_tick AS t USING unnest($1::text[], $2::bigint[]) AS u (schedule, n)
 WHERE t.schedule = u.schedule AND t.n <= u.n AND t.state <> 'queued';

-- name: notify
SELECT pg_notify('{channel}', $1);

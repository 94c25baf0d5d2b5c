-- name: first_due
SELECT min(due) FROM (
    SELECT (SELECT min(s.due_at) FROM holdfast_schedule AS s
             WHERE s.workflow = w.value AND s.due_at IS NOT NULL) AS due
      FROM json_each(?1) AS w);

-- name: due
SELECT s.name, s.workflow, s.content, s.params, s.declaration, s.paused, s.note, s.created_at, s.updated_at, s.revision,
       s.next_tick, s.due_at, s.seq, s.result, s.result_n
  FROM json_each(?1) AS w
  JOIN holdfast_schedule AS s
    ON s.name IN (SELECT d.name FROM holdfast_schedule AS d INDEXED BY holdfast_schedule_due
                   WHERE d.workflow = w.value AND d.due_at <= ?2 ORDER BY d.due_at LIMIT ?3)
 ORDER BY s.due_at, s.name LIMIT ?3;

-- name: by_name
SELECT name, workflow, content, params, declaration, paused, note, created_at, updated_at, revision,
       next_tick, due_at, seq, result, result_n
  FROM holdfast_schedule WHERE name = ?1;

-- name: page
SELECT name, workflow, content, params, declaration, paused, note, created_at, updated_at, revision,
       next_tick, due_at, seq, result, result_n
  FROM holdfast_schedule
 WHERE name > ?1 AND (?3 IS NULL OR workflow IN (SELECT value FROM json_each(?3))) ORDER BY name LIMIT ?2;

-- name: open_ticks
SELECT t.n, t.tick, t.cause, t.overlap, t.state, t.workflow, t.instance_id, t.at, r.status,
       iif(r.status = 'complete', r.output, NULL), r.id
  FROM holdfast_tick AS t
  LEFT JOIN holdfast_run AS r ON r.workflow = t.workflow AND r.instance_id = t.instance_id AND r.current = 1
 WHERE t.schedule = ?1 AND t.state IN ('started', 'cancelling') ORDER BY t.n;

-- name: queued_ticks
SELECT n, tick, cause, overlap, state, workflow, instance_id, at, NULL, NULL, NULL
  FROM holdfast_tick WHERE schedule = ?1 AND state = 'queued' ORDER BY n LIMIT ?2;

-- name: newest_ticks
SELECT t.n, t.tick, t.cause, t.overlap, t.state, t.workflow, t.instance_id, t.at, r.status, NULL, r.id
  FROM holdfast_tick AS t
  LEFT JOIN holdfast_run AS r ON r.workflow = t.workflow AND r.instance_id = t.instance_id AND r.current = 1
 WHERE t.schedule = ?1 ORDER BY t.n DESC LIMIT ?2;

-- name: insert
INSERT INTO holdfast_schedule (name, workflow, content, params, declaration, paused, note, created_at, updated_at,
                               revision, next_tick, due_at, seq, result, result_n)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, 1, ?9, ?10, ?11, ?12, ?13)
ON CONFLICT (name) DO NOTHING;

-- name: update
UPDATE holdfast_schedule
   SET workflow = ?2, content = ?3, params = ?4, declaration = ?5, paused = ?6, note = ?7, updated_at = ?8,
       next_tick = ?9, due_at = ?10, seq = ?11, result = ?12, result_n = ?13, revision = revision + 1
 WHERE name = ?1 AND revision = ?14;

-- name: delete
DELETE FROM holdfast_schedule WHERE name = ?1 AND revision = ?2;

-- name: delete_ticks
DELETE FROM holdfast_tick WHERE schedule = ?1;

-- name: write_tick
INSERT INTO holdfast_tick (schedule, n, tick, cause, overlap, state, workflow, instance_id, at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT (schedule, n) DO UPDATE SET state = excluded.state, at = excluded.at;

-- name: trim_ticks
DELETE FROM holdfast_tick WHERE schedule = ?1 AND n <= ?2 AND state <> 'queued';

-- The tasks of a batch of writes whose owner and epoch still match. ?1: [[run, unit, owner, epoch], ...]
-- name: owned
SELECT json_group_array(json_array(t.run, t.unit, t.owner, t.epoch))
  FROM json_each(?1) AS item
 CROSS JOIN holdfast_task AS t
    ON t.run = item.value ->> 0 AND t.unit = item.value ->> 1 AND t.owner = item.value ->> 2
   AND t.epoch = item.value ->> 3;

-- The stream and its last chunk. A chunk that refers to a blob takes no further items: it counts as longer than any chunk.
-- name: head
SELECT s.items, s.size, s.code_items, s.markers, c.first, c.count,
       iif(instr(substr(c.data, 1, 40), x'20207b') > 0 AND instr(c.data, CAST('"blobs":[' AS BLOB)) > 0, 1000000000,
           length(c.data)), c.step_key, c.epoch, c.attempt,
       c.start, c.closes
  FROM holdfast_stream AS s LEFT JOIN holdfast_chunk AS c ON c.run = s.run AND c.name = s.name AND c.first = s.tail
 WHERE s.run = ?1 AND s.name = ?2;

-- The number of items that an attempt has written to a stream.
-- name: written
SELECT start + count FROM holdfast_chunk
 WHERE run = ?1 AND name = ?2 AND step_key = ?3 AND epoch = ?4 AND attempt = ?5 ORDER BY first DESC LIMIT 1;

-- name: set_head
INSERT INTO holdfast_stream (run, name, items, size, code_items, markers, tail) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (run, name) DO UPDATE
   SET items = excluded.items, size = excluded.size, code_items = excluded.code_items, markers = excluded.markers,
       tail = excluded.tail;

-- name: insert_chunk
INSERT INTO holdfast_chunk (run, name, first, count, step_key, unit, epoch, attempt, start, closes, data)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11);

-- name: extend_chunk
UPDATE holdfast_chunk SET count = count + ?4, data = CAST(data || ?5 AS BLOB) WHERE run = ?1 AND name = ?2 AND first = ?3;

-- name: has_ended
SELECT NOT EXISTS (SELECT 1 FROM holdfast_run WHERE id = ?1 AND completed_at IS NULL);

-- The chunks after an offset, each with the state of its writer (WriterState).
-- name: chunks
SELECT c.first, c.count, c.step_key, c.attempt,
       CASE WHEN c.step_key IS NULL OR f.ok = 1 THEN 1
            WHEN f.ok IS NULL AND EXISTS (SELECT 1 FROM holdfast_task AS t
                                           WHERE t.run = c.run AND t.unit = c.unit AND t.epoch = c.epoch
                                             AND t.owner IS NOT NULL) THEN 0
            ELSE 2 END,
       c.closes, c.data
  FROM holdfast_chunk AS c
  LEFT JOIN holdfast_fact AS f
    ON f.run = c.run AND f.state = 8 AND f.key = c.step_key AND f.n = c.epoch * 16777216 + c.attempt
 WHERE c.run = ?1 AND c.name = ?2
   AND c.first >= coalesce((SELECT max(first) FROM holdfast_chunk WHERE run = ?1 AND name = ?2 AND first <= ?3 + 1), 0)
 ORDER BY c.first LIMIT ?4;

-- name: heads
SELECT name, items, size, code_items, markers FROM holdfast_stream WHERE run = ?1 ORDER BY name;

-- The writers that closed a stream. ?2: the name.
-- name: closers
SELECT c.step_key
  FROM holdfast_chunk AS c
  LEFT JOIN holdfast_fact AS f
    ON f.run = c.run AND f.state = 8 AND f.key = c.step_key AND f.n = c.epoch * 16777216 + c.attempt
 WHERE c.run = ?1 AND c.name = ?2 AND c.closes = 1 AND (c.step_key IS NULL OR f.ok = 1)
 ORDER BY c.first;

-- name: old_streams
SELECT s.run, s.name FROM holdfast_stream AS s JOIN holdfast_run AS r ON r.id = s.run
 WHERE r.workflow = ?1 AND r.completed_at <= ?2 LIMIT ?3;

-- name: delete_chunks
DELETE FROM holdfast_chunk WHERE run = ?1 AND name = ?2;

-- name: delete_stream
DELETE FROM holdfast_stream WHERE run = ?1 AND name = ?2;

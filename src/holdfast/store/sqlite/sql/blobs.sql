-- name: insert
INSERT INTO holdfast_blob (id, refs, used, at) VALUES (?1, 0, 0, ?2) ON CONFLICT DO NOTHING;

-- name: write_chunk
INSERT INTO holdfast_blob_chunk (id, n, data) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING;

-- name: read_chunk
SELECT data FROM holdfast_blob_chunk WHERE id = ?1 AND n = ?2;

-- name: renew
UPDATE holdfast_blob SET at = ?2 WHERE id IN (SELECT value FROM json_each(?1)) AND used = 0;

-- name: known
SELECT id FROM holdfast_blob WHERE id IN (SELECT value FROM json_each(?1));

-- name: garbage
SELECT id FROM holdfast_blob WHERE refs <= 0 AND (used = 1 OR at <= ?1) LIMIT ?2;

-- name: delete_chunks
DELETE FROM holdfast_blob_chunk
 WHERE id IN (SELECT id FROM holdfast_blob WHERE id IN (SELECT value FROM json_each(?1)) AND refs <= 0);

-- name: forget
DELETE FROM holdfast_blob WHERE id IN (SELECT value FROM json_each(?1)) AND refs <= 0;

-- name: triggers
SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND name LIKE 'holdfast\_blob\_%' ESCAPE '\';

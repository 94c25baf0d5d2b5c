-- name: insert
INSERT INTO holdfast_bulk (id, created_at, content, position, upto, progress) VALUES (?1, ?2, ?3, 0, ?4, ?5)
RETURNING id, created_at, content, position, upto, progress, ended_at;

-- name: take
UPDATE holdfast_bulk INDEXED BY holdfast_bulk_open SET owner = ?1, lease_until = ?3
 WHERE ended_at IS NULL AND (lease_until IS NULL OR lease_until <= ?2) AND (?4 IS NULL OR id = ?4)
   AND id NOT IN (SELECT value FROM json_each(?5))
RETURNING id, created_at, content, position, upto, progress, ended_at;

-- name: save
UPDATE holdfast_bulk SET lease_until = ?3, position = ?4, progress = ?5, ended_at = ?6 WHERE id = ?1 AND owner = ?2
RETURNING id, created_at, content, position, upto, progress, ended_at;

-- name: by_id
SELECT id, created_at, content, position, upto, progress, ended_at FROM holdfast_bulk WHERE id = ?1;

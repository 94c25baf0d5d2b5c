-- name: insert
INSERT INTO {schema}.holdfast_bulk (id, created_at, content, position, upto, progress)
VALUES ($2, {schema}.holdfast_begin($1), $3, 0, $4, $5)
ON CONFLICT (id) DO UPDATE SET id = excluded.id
RETURNING id, created_at, content, position, upto, progress, ended_at;

-- name: take
UPDATE {schema}.holdfast_bulk SET owner = $2, lease_until = {schema}.holdfast_begin($1) + $3
 WHERE ended_at IS NULL AND (lease_until IS NULL OR owner = $2 OR lease_until <= {schema}.holdfast_begin($1))
   AND ($4::text IS NULL OR id = $4) AND id <> ALL ($5::text[])
RETURNING id, created_at, content, position, upto, progress, ended_at;

-- name: save
UPDATE {schema}.holdfast_bulk
   SET lease_until = {schema}.holdfast_begin($1) + $4, position = $5, progress = $6,
       ended_at = CASE WHEN $7::boolean THEN {schema}.holdfast_begin($1) END
 WHERE id = $2 AND owner = $3
RETURNING id, created_at, content, position, upto, progress, ended_at;

-- name: by_id
SELECT id, created_at, content, position, upto, progress, ended_at FROM {schema}.holdfast_bulk WHERE id = $1;

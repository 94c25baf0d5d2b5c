-- name: write_chunk
WITH blob AS (
    INSERT INTO {schema}.holdfast_blob (id, refs, used, at) VALUES ($2, 0, false, {schema}.holdfast_begin($1))
    ON CONFLICT (id) DO NOTHING
)
INSERT INTO {schema}.holdfast_blob_chunk (id, n, data) VALUES ($2, $3, $4) ON CONFLICT (id, n) DO NOTHING;

-- name: read_chunk
SELECT data FROM {schema}.holdfast_blob_chunk WHERE id = $1 AND n = $2;

-- name: renew
UPDATE {schema}.holdfast_blob SET at = {schema}.holdfast_begin($1) WHERE id = ANY($2) AND NOT used;

-- name: known
SELECT id FROM {schema}.holdfast_blob WHERE id = ANY($1);

-- name: garbage
SELECT id FROM {schema}.holdfast_blob WHERE refs <= 0 AND (used OR at <= {schema}.holdfast_begin($1) - $2) LIMIT $3;

-- name: forget
WITH forgotten AS (DELETE FROM {schema}.holdfast_blob WHERE id = ANY($1) AND refs <= 0 RETURNING id)
DELETE FROM {schema}.holdfast_blob_chunk WHERE id IN (SELECT id FROM forgotten);

-- name: triggers
SELECT t.tgname FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND t.tgname LIKE 'holdfast\_blob\_%';

-- name: has_meta
SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'holdfast_meta';

-- name: meta
CREATE TABLE IF NOT EXISTS holdfast_meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;

-- name: version
SELECT coalesce((SELECT value FROM holdfast_meta WHERE key = 'schema_version'), 0);

-- name: set_version
INSERT INTO holdfast_meta (key, value) VALUES ('schema_version', ?1) ON CONFLICT DO UPDATE SET value = excluded.value;

-- name: fence_reason
SELECT reason FROM holdfast_fence LIMIT 1;

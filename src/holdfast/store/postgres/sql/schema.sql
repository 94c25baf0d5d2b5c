-- name: has_meta
SELECT to_regclass('{schema}.holdfast_meta') IS NOT NULL;

-- name: version
SELECT coalesce((SELECT value FROM {schema}.holdfast_meta WHERE key = 'schema_version'), 0);

-- Two sessions that both find no schema both try to make one, even with IF NOT EXISTS: whoever is second waits here.
-- name: lock
SELECT pg_advisory_xact_lock(hashtextextended('holdfast migrations of {schema}', 0));

-- name: has_schema
SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1);

-- name: schema
CREATE SCHEMA {schema};

-- name: meta
CREATE TABLE IF NOT EXISTS {schema}.holdfast_meta (key TEXT PRIMARY KEY, value BIGINT NOT NULL);

-- name: set_version
INSERT INTO {schema}.holdfast_meta (key, value) VALUES ('schema_version', $1)
ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: relations
SELECT array_agg(c.oid) FROM pg_catalog.pg_class AS c
 WHERE c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = $1);

-- name: now
SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;

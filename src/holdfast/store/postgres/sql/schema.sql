-- name: has_meta
SELECT to_regclass('{schema}.holdfast_meta') IS NOT NULL;

-- name: state
SELECT coalesce(max(value) FILTER (WHERE key = 'schema_version'), 0),
       coalesce(max(value) FILTER (WHERE key = 'functions_release'), 0),
       coalesce(max(value) FILTER (WHERE key = 'functions_digest'), 0)
  FROM {schema}.holdfast_meta;

-- Two sessions that find no schema would both create it, and one would fail, even with IF NOT EXISTS. The lock makes
-- the second session wait.
-- name: lock
SELECT pg_advisory_xact_lock(hashtextextended('holdfast migrations of {schema}', 0));

-- name: has_schema
SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1);

-- name: schema
CREATE SCHEMA {schema};

-- name: meta
CREATE TABLE IF NOT EXISTS {schema}.holdfast_meta (key TEXT PRIMARY KEY, value BIGINT NOT NULL);

-- name: set_state
INSERT INTO {schema}.holdfast_meta (key, value) VALUES ($1, $2)
ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: fence_reason
SELECT reason FROM {schema}.holdfast_fence LIMIT 1;

-- name: relations
SELECT array_agg(c.oid) FROM pg_catalog.pg_class AS c
 WHERE c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = $1);

-- name: now
SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;

-- name: commit
SELECT verdicts, signals, due, more FROM {schema}.holdfast_commit($1, $2, $3, $4, {commit.arguments});

-- name: commit_one
SELECT {schema}.holdfast_commit_one({commit_one.common.arguments});

-- name: commit_one_all_arguments
SELECT {schema}.holdfast_commit_one({commit_one.arguments});

-- Checked before users' statements run. The lock is taken later, by the commit, so that no other transaction waits for
-- the statements.
-- name: is_owned
SELECT EXISTS (SELECT FROM {schema}.holdfast_task WHERE run = $1 AND unit = $2 AND owner = $3 AND epoch = $4);

-- Inserts a marker by which the outcome of this transaction can be queried, and deletes markers that are no longer
-- needed. The transaction id would not do: after a crash the server reuses an id that never reached the disk.
-- name: insert_marker
WITH used AS (DELETE FROM {schema}.holdfast_receipt WHERE store = ANY($1::text[]))
INSERT INTO {schema}.holdfast_receipt (store, sequence, n, at, verdicts, signals, due)
VALUES ('transaction ' || gen_random_uuid(), 0, 0, {schema}.holdfast_begin(NULL), '{}', '{}', '{}') RETURNING store;

-- True if the marker exists, that is, the transaction was committed; otherwise inserts it with n = 1. The insert waits
-- for a transaction that is still running.
-- name: was_committed
INSERT INTO {schema}.holdfast_receipt AS r (store, sequence, n, at, verdicts, signals, due)
VALUES ($1, 0, 1, {schema}.holdfast_begin(NULL), '{}', '{}', '{}')
ON CONFLICT (store, sequence) DO UPDATE SET n = r.n
RETURNING n = 0;

-- name: search_path
SELECT set_config('search_path', concat_ws(', ', nullif(current_setting('search_path'), ''), $1::text), true);

-- A relation of the engine that this transaction wrote to or altered: PostgreSQL keeps its lock until the transaction
-- ends. $1: the oids of the relations that existed when the store was opened; without them a dropped table would not be
-- found.
-- name: changed_relation
SELECT l.relation::regclass::text
  FROM pg_catalog.pg_locks AS l
  LEFT JOIN pg_catalog.pg_class AS c ON c.oid = l.relation
 WHERE l.locktype = 'relation' AND l.pid = pg_backend_pid()
   AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
   AND l.mode NOT IN ('AccessShareLock', 'RowShareLock')
   AND (l.relation = ANY ($1::oid[]) OR c.relname LIKE 'holdfast\_%')
 LIMIT 1;

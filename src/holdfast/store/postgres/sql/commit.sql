-- name: commit
SELECT verdicts, signals, due, more FROM {schema}.holdfast_commit(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
    $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, $41, $42, $43, $44, $45, $46, $47, $48,
    $49, $50, $51, $52, $53, $54, $55, $56, $57
);

-- name: commit_one
SELECT {schema}.holdfast_commit_one(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24
);

-- name: commit_one_with_more
SELECT {schema}.holdfast_commit_one(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24,
    $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40
);

-- A look before users' statements are run; the lock comes with the commit, so that nobody waits for them meanwhile.
-- name: holds
SELECT EXISTS (SELECT FROM {schema}.holdfast_task WHERE run = $1 AND unit = $2 AND owner = $3 AND epoch = $4);

-- A transaction leaves its mark, and takes away those that are not needed any more. Its number would not do: after a
-- crash the server gives a number that never reached the disk to somebody else.
-- name: mark
WITH spent AS (DELETE FROM {schema}.holdfast_receipt WHERE store = ANY($1::text[]))
INSERT INTO {schema}.holdfast_receipt (store, line, n, at, verdicts, signals, due)
VALUES ('transaction ' || gen_random_uuid(), 0, 0, {schema}.holdfast_begin(NULL), '{}', '{}', '{}') RETURNING store;

-- Whether the mark is there. If not, it is put there as one that came too late; a try still under way is waited for.
-- name: outcome
INSERT INTO {schema}.holdfast_receipt AS r (store, line, n, at, verdicts, signals, due)
VALUES ($1, 0, 1, {schema}.holdfast_begin(NULL), '{}', '{}', '{}')
ON CONFLICT (store, line) DO UPDATE SET n = r.n
RETURNING n = 0;

-- name: search_path
SELECT set_config('search_path', concat_ws(', ', nullif(current_setting('search_path'), ''), $1::text), true);

-- The engine's relations that this transaction has done more to than to read them: PostgreSQL keeps the locks until it
-- ends. $1 are those that were there when the store was opened, or a table that was dropped would not be found.
-- name: touched
SELECT l.relation::regclass::text
  FROM pg_catalog.pg_locks AS l
  LEFT JOIN pg_catalog.pg_class AS c ON c.oid = l.relation
 WHERE l.locktype = 'relation' AND l.pid = pg_backend_pid()
   AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
   AND l.mode NOT IN ('AccessShareLock', 'RowShareLock')
   AND (l.relation = ANY ($1::oid[]) OR c.relname LIKE 'holdfast\_%')
 LIMIT 1;

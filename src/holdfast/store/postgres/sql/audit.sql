-- name: insert
INSERT INTO {schema}.holdfast_audit (at, actor, action, target, reason, outcome)
VALUES ({schema}.holdfast_begin($1), $2, $3, $4, $5, $6);

-- name: all
SELECT n, at, actor, action, target, reason, outcome FROM {schema}.holdfast_audit
 WHERE n < $1 ORDER BY n DESC LIMIT $2;

-- name: of_target
SELECT n, at, actor, action, target, reason, outcome FROM {schema}.holdfast_audit
 WHERE target = $3 AND n < $1 ORDER BY n DESC LIMIT $2;

-- name: next_workflow
SELECT workflow FROM {schema}.holdfast_run WHERE current AND workflow > $1 ORDER BY workflow LIMIT 1;

-- name: prune
SELECT runs, next_at, next_run, stored, seconds FROM {schema}.holdfast_prune($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: create
SELECT ord, run, created_at
  FROM {schema}.holdfast_create($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13);

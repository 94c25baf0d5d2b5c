-- name: advance
SELECT applied, taken, due FROM {schema}.holdfast_advance($1, $2, $3, $4, $5, $6, $7, $8, $9, {advance.arguments});

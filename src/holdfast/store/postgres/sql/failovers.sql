-- name: enter_timeline
SELECT {schema}.holdfast_enter_timeline($1, $2);

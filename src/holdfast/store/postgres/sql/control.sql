-- name: pause
SELECT * FROM {schema}.holdfast_pause($1, $2, $3, $4);

-- name: resume
SELECT * FROM {schema}.holdfast_resume($1, $2, $3, $4);

-- name: terminate
SELECT * FROM {schema}.holdfast_terminate($1, $2, $3, $4, $5);

-- name: restart
SELECT * FROM {schema}.holdfast_restart($1, $2, $3, $4, $5, $6);

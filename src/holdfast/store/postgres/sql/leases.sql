-- name: heartbeat
SELECT now, run, unit, epoch, signal FROM {schema}.holdfast_heartbeat($1, $2, $3);

-- name: has_signals
SELECT EXISTS (SELECT FROM {schema}.holdfast_task WHERE owner = $1 AND signal <> 0);

-- name: signals
SELECT run, unit, epoch, signal FROM {schema}.holdfast_signals($1, $2);

-- name: reap
SELECT run, unit, losses, parked FROM {schema}.holdfast_reap($1, $2, $3, $4);

-- name: set_leases
SELECT * FROM {schema}.holdfast_set_leases($1, $2, $3, $4, $5, $6);

-- name: release
SELECT {schema}.holdfast_release($1, $2, $3, $4, $5, $6);

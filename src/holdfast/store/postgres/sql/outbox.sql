-- name: claim
SELECT * FROM {schema}.holdfast_outbox_claim($1, $2, $3, $4, $5, $6);

-- name: settle
SELECT {schema}.holdfast_outbox_settle($1, $2, $3, $4, $5, $6);

-- name: retry
SELECT {schema}.holdfast_outbox_retry($1, $2, $3);

-- name: all
SELECT o.run, o.n, r.workflow, r.instance_id, r.number, o.step, o.type, o.payload, o.created_at, o.attempts, o.run_at,
       o.error, o.delivered_at, o.parked_at, o.trace
  FROM {schema}.holdfast_outbox AS o JOIN {schema}.holdfast_run AS r ON r.id = o.run
 WHERE o.run = $1 ORDER BY o.n;

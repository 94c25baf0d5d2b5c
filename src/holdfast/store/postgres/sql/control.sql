-- name: pause
SELECT * FROM {schema}.holdfast_pause($1, $2, $3, $4);

-- name: resume
SELECT * FROM {schema}.holdfast_resume($1, $2, $3, $4);

-- name: move
SELECT * FROM {schema}.holdfast_move($1, $2, $3, $4, $5, $6);

-- name: terminate
SELECT s.ended, s.woken, s.work, (s.r).* FROM {schema}.holdfast_terminate($1, $2, $3, $4, $5) AS s;

-- name: cancel
SELECT s.ended, s.woken, s.work, (s.r).* FROM {schema}.holdfast_cancel($1, $2, $3, $4, $5, $6, $7) AS s;

-- name: restart
SELECT s.ended, s.woken, s.work, (s.r).* FROM {schema}.holdfast_restart(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13
) AS s;

-- name: current_in_line
SELECT c.id FROM {schema}.holdfast_run AS r
  JOIN {schema}.holdfast_run AS c ON c.workflow = r.workflow AND c.instance_id = r.instance_id AND c.current
   AND coalesce(c.line, c.id) = coalesce(r.line, r.id)
 WHERE r.id = $1;

-- name: is_made_by
SELECT made_by IS NOT DISTINCT FROM $2 FROM {schema}.holdfast_run WHERE id = $1;

-- name: resolve
SELECT s.ended, s.woken, s.work, (s.r).* FROM {schema}.holdfast_resolve($1, $2, $3, $4, $5) AS s;

-- name: reply_by_hand
SELECT s.done, s.ended, s.woken, s.work, (s.r).*
  FROM {schema}.holdfast_reply_by_hand($1, $2, $3, $4, $5, $6, $7, $8) AS s;

-- name: resolve_unit
SELECT s.done, (s.r).* FROM {schema}.holdfast_resolve_unit(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, {advance.facts.arguments}
) AS s;

-- name: send
SELECT s.accepted, s.duplicate, s.woken, (s.r).*
  FROM {schema}.holdfast_send($1, $2, $3, $4, $5, $6, $7, $8, $9) AS s ORDER BY s.ord;

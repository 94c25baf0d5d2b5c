-- name: send
SELECT s.accepted, s.duplicate, s.woken, s.epoch, s.kind, s.lost, s.now, s.mail_n, s.mail_type, s.mail_payload,
       s.mail_at, s.mail_sender, s.mail_ask, s.mail_last, (s.r).*
  FROM {schema}.holdfast_send($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) AS s;

-- name: send_one
SELECT s.woken, s.epoch, s.kind, s.lost, s.now, s.mail_n, s.mail_type, s.mail_payload, s.mail_at, s.mail_sender,
       s.mail_ask, s.mail_last, (s.r).id, (s.r).workflow, (s.r).instance_id, (s.r).number, (s.r).kind, (s.r).status,
       (s.r).params, (s.r).output, (s.r).error, (s.r).queue, (s.r).priority, (s.r).created_at, (s.r).updated_at,
       (s.r).started_at, (s.r).completed_at, (s.r).instance, (s.r).seed, (s.r).note, (s.r).parent, (s.r).attempt,
       (s.r).options, (s.r).memo, (s.r).search, (s.r).current, (s.t).run_at, (s.t).owner, (s.t).losses, (s.t).signal,
       (s.t).expires_at, (s.t).expiry, (s.t).topics
  FROM {schema}.holdfast_send_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) AS s;

-- name: send_foreseen
SELECT {schema}.holdfast_send_foreseen(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17
);

-- name: send_foreseen_with_more
SELECT {schema}.holdfast_send_foreseen(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
    $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28
);

-- name: was_foreseen
SELECT {schema}.holdfast_was_foreseen($1, $2, $3);

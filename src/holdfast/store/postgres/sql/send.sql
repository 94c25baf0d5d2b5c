-- name: send
SELECT s.accepted, s.duplicate, s.woken, s.epoch, s.kind, s.lost, s.now, s.mailbox_n, s.mailbox_type, s.mailbox_payload,
       s.mailbox_at, s.mailbox_sender, s.mailbox_ask, s.mailbox_trace, s.mailbox_last, (s.r).*
  FROM {schema}.holdfast_send($1, $2, {send.arguments}, $3, $4) AS s;

-- name: send_one
SELECT s.woken, s.epoch, s.kind, s.lost, s.now, s.mailbox_n, s.mailbox_type, s.mailbox_payload, s.mailbox_at,
       s.mailbox_sender, s.mailbox_ask, s.mailbox_trace, s.mailbox_last, (s.r).id, (s.r).workflow, (s.r).instance_id, (s.r).number,
       (s.r).kind, (s.r).status, (s.r).params, (s.r).output, (s.r).error, (s.r).queue, (s.r).priority,
       (s.r).created_at, (s.r).updated_at, (s.r).started_at, (s.r).completed_at, (s.r).instance, (s.r).seed,
       (s.r).note, (s.r).parent, (s.r).attempt, (s.r).options, (s.r).memo, (s.r).search, (s.r).current, (s.r).version,
       (s.r).pinned, (s.r).origin, (s.t).run_at, (s.t).owner, (s.t).losses, (s.t).signal,
       (s.t).expires_at, (s.t).expiry, (s.t).topics
  FROM {schema}.holdfast_send_one($1, $2, {send_one.arguments}, $3, $4) AS s;

-- name: send_predicted
SELECT {schema}.holdfast_send_predicted({send_predicted.common.arguments});

-- name: send_predicted_all_arguments
SELECT {schema}.holdfast_send_predicted({send_predicted.arguments});

-- name: prediction_written
SELECT {schema}.holdfast_prediction_written($1, $2, $3);

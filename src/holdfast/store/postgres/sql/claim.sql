-- name: claim
SELECT c.now, c.next_due, c.overdue, c.unit, c.epoch, c.kind, c.lost, c.mail_n, c.mail_type, c.mail_payload, c.mail_at,
       c.mail_sender, c.mail_ask, c.mail_last, (c.r).*
  FROM {schema}.holdfast_claim($1, $2, $3, $4, $5, $6, $7, $8, $9) AS c;

-- name: claim_units
SELECT c.now, c.next_due, c.overdue, c.unit, c.epoch, c.kind, c.lost, c.mail_n, c.mail_type, c.mail_payload, c.mail_at,
       c.mail_sender, c.mail_ask, c.mail_last, (c.r).*
  FROM {schema}.holdfast_claim_units($1, $2, $3, $4, $5, $6, $7, $8) AS c;

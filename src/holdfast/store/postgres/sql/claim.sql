-- name: claim
SELECT c.now, c.next_due, c.overdue, c.unit, c.epoch, c.kind, c.lost, c.mailbox_n, c.mailbox_type, c.mailbox_payload,
       c.mailbox_at, c.mailbox_sender, c.mailbox_ask, c.mailbox_trace, c.mailbox_last, (c.r).*
  FROM {schema}.holdfast_claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) AS c;

-- name: claim_units
SELECT c.now, c.next_due, c.overdue, c.unit, c.epoch, c.kind, c.lost, c.mailbox_n, c.mailbox_type, c.mailbox_payload,
       c.mailbox_at, c.mailbox_sender, c.mailbox_ask, c.mailbox_trace, c.mailbox_last, (c.r).*
  FROM {schema}.holdfast_claim_units($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) AS c;

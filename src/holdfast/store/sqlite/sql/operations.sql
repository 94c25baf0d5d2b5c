-- name: sender_and_ask
SELECT sender, ask FROM holdfast_event WHERE run = ?1 AND n = ?2;

-- The first reply is kept.
-- name: set_reply
UPDATE holdfast_event SET reply_ok = ?3, reply = ?4, replied_at = ?5 WHERE run = ?1 AND n = ?2 AND replied_at IS NULL;

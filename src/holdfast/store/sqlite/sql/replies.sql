-- name: sender_and_ask
SELECT sender, ask FROM holdfast_event WHERE run = ?1 AND n = ?2;

-- The first reply is kept.
-- name: set_reply
UPDATE holdfast_event SET reply_ok = ?3, reply = ?4, replied_at = ?5 WHERE run = ?1 AND n = ?2 AND replied_at IS NULL;

-- The event may belong to another run of the line: the run that was asked first, or a successor that it was moved to.
-- name: reply
SELECT reply_ok, reply FROM holdfast_event
 WHERE line = (SELECT coalesce(line, id) FROM holdfast_run WHERE id = ?1) AND dedup = ?2 AND replied_at IS NOT NULL;

-- name: replies
SELECT n, reply_ok, reply FROM holdfast_event
 WHERE run = ?1 AND n IN (SELECT value FROM json_each(?2)) AND replied_at IS NOT NULL;

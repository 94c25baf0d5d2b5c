-- name: insert_event
INSERT INTO holdfast_event (run, n, type, payload, created_at, sender, dedup, ask, trace, line)
VALUES (?1, 1 + coalesce((SELECT max(n) FROM holdfast_event WHERE run = ?1), 0), ?2, ?3, ?4, ?5, ?6, ?7, ?8,
        iif(?6 IS NULL, NULL, (SELECT coalesce(line, id) FROM holdfast_run WHERE id = ?1)))
ON CONFLICT (line, dedup) WHERE dedup IS NOT NULL DO NOTHING;

-- name: wake
UPDATE holdfast_task SET run_at = ?2, kind = ?3, bucket = ?4
 WHERE run = ?1 AND unit = 0 AND held_at IS NULL;

-- name: signal
UPDATE holdfast_task SET signal = signal | ?2 WHERE run = ?1 AND unit = 0;

-- name: end_status
SELECT status FROM holdfast_run WHERE id = ?1 AND completed_at IS NOT NULL;

-- name: insert_missing_fact
INSERT OR IGNORE INTO holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, value, name, attempts,
                                     max_attempts, timeout_ms, wake_at, event_type, event)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

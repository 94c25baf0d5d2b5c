-- name: ended
SELECT completed_at IS NOT NULL FROM holdfast_run WHERE id = ?1;

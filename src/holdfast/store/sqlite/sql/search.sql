-- name: set_attributes
UPDATE holdfast_run SET memo = coalesce(?2, memo), search = coalesce(?3, search), updated_at = ?4 WHERE id = ?1;

-- name: delete_terms
DELETE FROM holdfast_term WHERE instance = (SELECT instance FROM holdfast_run WHERE id = ?1);

-- name: insert_term
INSERT INTO holdfast_term (workflow, key, value, instance)
SELECT workflow, ?2, ?3, instance FROM holdfast_run WHERE id = ?1
ON CONFLICT (workflow, key, value, instance) DO NOTHING;

-- The next matching instance, from the newest to the oldest.
-- name: next_equal
SELECT max(instance) FROM holdfast_term WHERE workflow = ?1 AND key = ?2 AND value = ?3 AND instance < ?4;

-- name: next_status
SELECT max(instance) FROM holdfast_run WHERE current = 1 AND workflow = ?1 AND status = ?2 AND instance < ?3;

-- name: between
SELECT json_group_array(instance) FROM holdfast_term
 WHERE workflow = ?1 AND key = ?2 AND value >= ?3 AND value <= ?4 AND value IS NOT ?5 AND instance < ?6;

-- The unary plus signs keep SQLite from using an index of current runs, which would scan the whole workflow.
-- name: with_prefix
SELECT json_group_array(instance) FROM holdfast_run
 WHERE workflow = ?1 AND instance_id >= ?2 AND instance_id < ?3 AND +current = 1 AND +instance < ?4;

-- name: has_between
SELECT EXISTS (SELECT 1 FROM holdfast_term INDEXED BY holdfast_term_instance
                WHERE instance = ?1 AND key = ?2 AND value >= ?3 AND value <= ?4 AND value IS NOT ?5);

-- name: record
SELECT * FROM holdfast_record WHERE current = 1 AND workflow = ?1 AND instance = ?2;

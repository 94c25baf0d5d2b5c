-- name: set_attributes
UPDATE holdfast_run SET memo = coalesce(?2, memo), search = coalesce(?3, search), updated_at = ?4 WHERE id = ?1;

-- name: delete_terms
DELETE FROM holdfast_term WHERE instance = (SELECT instance FROM holdfast_run WHERE id = ?1);

-- name: insert_term
INSERT INTO holdfast_term (workflow, key, value, instance)
SELECT workflow, ?2, ?3, instance FROM holdfast_run WHERE id = ?1
ON CONFLICT (workflow, key, value, instance) DO NOTHING;

-- The next matching instance, from the newest to the oldest or in ascending order.
-- name: next_equal
SELECT max(instance) FROM holdfast_term WHERE workflow = ?1 AND key = ?2 AND value = ?3 AND instance < ?4;

-- name: next_equal_ascending
SELECT min(instance) FROM holdfast_term WHERE workflow = ?1 AND key = ?2 AND value = ?3 AND instance > ?4;

-- name: next_status
SELECT max(instance) FROM holdfast_run WHERE current = 1 AND workflow = ?1 AND status = ?2 AND instance < ?3;

-- name: next_status_ascending
SELECT min(instance) FROM holdfast_run WHERE current = 1 AND workflow = ?1 AND status = ?2 AND instance > ?3;

-- name: next_error
SELECT max(instance) FROM holdfast_run WHERE current = 1 AND workflow = ?1 AND error_name = ?2 AND instance < ?3;

-- name: next_error_ascending
SELECT min(instance) FROM holdfast_run WHERE current = 1 AND workflow = ?1 AND error_name = ?2 AND instance > ?3;

-- name: next_version
SELECT max(instance) FROM holdfast_run WHERE current = 1 AND workflow = ?1 AND version = ?2 AND instance < ?3;

-- name: next_version_ascending
SELECT min(instance) FROM holdfast_run WHERE current = 1 AND workflow = ?1 AND version = ?2 AND instance > ?3;

-- name: next_queue
SELECT max(instance) FROM holdfast_run
 WHERE current = 1 AND workflow = ?1 AND queue = ?2 AND queue <> 'default' AND instance < ?3;

-- name: next_queue_ascending
SELECT min(instance) FROM holdfast_run
 WHERE current = 1 AND workflow = ?1 AND queue = ?2 AND queue <> 'default' AND instance > ?3;

-- name: between
SELECT json_group_array(instance) FROM holdfast_term
 WHERE workflow = ?1 AND key = ?2 AND value >= ?3 AND value <= ?4 AND value IS NOT ?5;

-- The unary plus signs keep SQLite from using an index of current runs, which would scan the whole workflow.
-- name: with_prefix
SELECT json_group_array(instance) FROM holdfast_run
 WHERE workflow = ?1 AND instance_id >= ?2 AND instance_id < ?3 AND +current = 1;

-- name: has_between
SELECT EXISTS (SELECT 1 FROM holdfast_term INDEXED BY holdfast_term_instance
                WHERE instance = ?1 AND key = ?2 AND value >= ?3 AND value <= ?4 AND value IS NOT ?5);

-- Instances of a range of times, at most one more than ?4. More than ?4: the range is not selective.
-- name: created_between
SELECT json_group_array(instance)
  FROM (SELECT instance FROM holdfast_run
         WHERE current = 1 AND workflow = ?1 AND created_at >= ?2 AND created_at < ?3 LIMIT ?4 + 1) AS item;

-- name: ended_between
SELECT json_group_array(instance)
  FROM (SELECT instance FROM holdfast_run INDEXED BY holdfast_run_ended
         WHERE workflow = ?1 AND status = ?5 AND completed_at >= ?2 AND completed_at < ?3 LIMIT ?4 + 1) AS item;

-- name: record
SELECT * FROM holdfast_record
 WHERE current = 1 AND workflow = ?1 AND instance = ?2 AND (?3 IS NULL OR status = ?3)
   AND (?4 IS NULL OR (instance_id >= ?4 AND instance_id < ?4 || '~'))
   AND (?5 IS NULL OR error_name = ?5) AND (?6 IS NULL OR version = ?6) AND (?7 IS NULL OR queue = ?7)
   AND (?8 IS NULL OR created_at >= ?8) AND (?9 IS NULL OR created_at < ?9)
   AND (?10 IS NULL OR completed_at >= ?10) AND (?11 IS NULL OR completed_at < ?11);

-- Runs in the order of the list. The conditions tested here are those that most runs are expected to meet.
-- name: list
SELECT * FROM holdfast_record
 WHERE current = 1 AND workflow = ?1 AND instance < ?2 AND (?4 IS NULL OR queue = ?4)
   AND (?5 IS NULL OR +created_at >= ?5) AND (?6 IS NULL OR +created_at < ?6)
   AND (?7 IS NULL OR +completed_at >= ?7) AND (?8 IS NULL OR +completed_at < ?8)
 ORDER BY instance DESC LIMIT ?3;

-- name: list_status
SELECT * FROM holdfast_record
 WHERE current = 1 AND workflow = ?1 AND instance < ?2 AND status = ?9 AND (?4 IS NULL OR queue = ?4)
   AND (?5 IS NULL OR +created_at >= ?5) AND (?6 IS NULL OR +created_at < ?6)
   AND (?7 IS NULL OR +completed_at >= ?7) AND (?8 IS NULL OR +completed_at < ?8)
 ORDER BY instance DESC LIMIT ?3;

-- name: list_ascending
SELECT * FROM holdfast_record
 WHERE current = 1 AND workflow = ?1 AND instance > ?2 AND (?4 IS NULL OR queue = ?4)
   AND (?5 IS NULL OR +created_at >= ?5) AND (?6 IS NULL OR +created_at < ?6)
   AND (?7 IS NULL OR +completed_at >= ?7) AND (?8 IS NULL OR +completed_at < ?8)
 ORDER BY instance LIMIT ?3;

-- name: list_status_ascending
SELECT * FROM holdfast_record
 WHERE current = 1 AND workflow = ?1 AND instance > ?2 AND status = ?9 AND (?4 IS NULL OR queue = ?4)
   AND (?5 IS NULL OR +created_at >= ?5) AND (?6 IS NULL OR +created_at < ?6)
   AND (?7 IS NULL OR +completed_at >= ?7) AND (?8 IS NULL OR +completed_at < ?8)
 ORDER BY instance LIMIT ?3;

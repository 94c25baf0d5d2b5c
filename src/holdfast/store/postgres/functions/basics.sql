-- Functions that the other functions are built from: the time, locks, and text as JSON.
--
-- The store calls functions and not statements for two reasons. Each call is one round trip and one transaction, and
-- each statement inside a function sees what was committed before that statement began. A commit that waited for a lock
-- therefore sees the event whose sender held the lock; the parts of one large statement would share an older snapshot.
-- The settings of the functions exclude plans that are good only while a table is small: every row is found by an
-- index.
--
-- Lock order, everywhere: tasks by run id, then runs. A transaction that changes an unfinished run locks the run's task
-- (unit 0) first, and the tasks of other units, if any, after that. Claims are the exception: they skip locked tasks
-- and so never wait for one.

-- The time of a call (p_now if a test supplies the clock); also makes the transaction durable at its commit.
-- A single expression, so that PostgreSQL can inline it.
CREATE OR REPLACE FUNCTION {schema}.holdfast_begin(p_now BIGINT) RETURNS BIGINT LANGUAGE sql AS $$
    SELECT CASE WHEN current_setting('synchronous_commit') = 'off'
                 AND set_config('synchronous_commit', 'on', true) IS NULL THEN NULL
           ELSE coalesce(p_now, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) END
$$;

-- The trigger of a fenced schema (store/postgres/transfer.py): refuses every write.
CREATE OR REPLACE FUNCTION {schema}.holdfast_refuse_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the database is fenced for a transfer' USING ERRCODE = {FENCED};
END $$;

CREATE OR REPLACE FUNCTION {schema}.holdfast_current_run(p_workflow TEXT, p_instance_id TEXT) RETURNS BIGINT
LANGUAGE sql STABLE AS $$
    SELECT id FROM {schema}.holdfast_run
     WHERE workflow = p_workflow AND instance_id = p_instance_id ORDER BY number DESC LIMIT 1
$$;

-- Lock the current run of an instance, so that it stays the current one until the transaction ends. For an unfinished
-- run the lock is the task: no successor can be inserted while it is held. For an ended run it is the row of the run.
CREATE OR REPLACE FUNCTION {schema}.holdfast_lock_current_run(p_workflow TEXT, p_instance_id TEXT) RETURNS BIGINT
LANGUAGE plpgsql AS $$
DECLARE
    v_run BIGINT := {schema}.holdfast_current_run(p_workflow, p_instance_id);
    v_locked BIGINT;
BEGIN
    WHILE v_run IS DISTINCT FROM v_locked LOOP
        v_locked := v_run;
        PERFORM FROM {schema}.holdfast_task WHERE run = v_run AND unit = 0 FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        PERFORM FROM {schema}.holdfast_run WHERE id = v_run FOR NO KEY UPDATE;
        v_run := {schema}.holdfast_current_run(p_workflow, p_instance_id);
    END LOOP;
    RETURN v_run;
END $$;

-- Children of a run that have not ended. OFFSET 0, here and elsewhere, makes the planner look rows up one by one
-- instead of joining them in another order.
CREATE OR REPLACE FUNCTION {schema}.holdfast_unfinished_children(p_parent BIGINT)
RETURNS TABLE (id BIGINT, parent_close TEXT, kind TEXT)
LANGUAGE sql STABLE AS $$
    SELECT id, parent_close, kind FROM {schema}.holdfast_run
     WHERE parent_run = p_parent AND parent_run IS NOT NULL AND completed_at IS NULL OFFSET 0
$$;

-- Lock the tasks of p_also, of p_ending, and of all runs that the end of p_ending affects: their watchers, and their
-- unfinished children, recursively. Repeated until the set is stable, because a run may get a successor while this call
-- waits for its lock.
CREATE OR REPLACE FUNCTION {schema}.holdfast_lock_affected(p_ending BIGINT[], p_also BIGINT[]) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_all BIGINT[];
    v_locked BIGINT[];
BEGIN
    LOOP
        WITH RECURSIVE ending (run) AS (
            SELECT unnest(p_ending)
            UNION
            SELECT c.id FROM ending AS e CROSS JOIN LATERAL {schema}.holdfast_unfinished_children(e.run) AS c
             WHERE c.parent_close <> {ParentClose.ABANDON}
        )
        SELECT array_agg(run ORDER BY run) INTO v_all
          FROM (SELECT run FROM ending
                UNION SELECT w.watcher
                        FROM ending AS e
                       CROSS JOIN LATERAL (
                             SELECT watcher FROM {schema}.holdfast_watch WHERE target = e.run OFFSET 0) AS w
                UNION SELECT unnest(p_also)) AS x (run);
        EXIT WHEN v_all IS NOT DISTINCT FROM v_locked;
        PERFORM 1 FROM {schema}.holdfast_task WHERE run = ANY (v_all) AND unit = 0 ORDER BY run FOR NO KEY UPDATE;
        v_locked := v_all;
    END LOOP;
END $$;

-- The same as holdfast_lock_current_run, for a run that is about to end: also locks the affected runs.
CREATE OR REPLACE FUNCTION {schema}.holdfast_lock_for_end(p_workflow TEXT, p_instance_id TEXT) RETURNS BIGINT
LANGUAGE plpgsql AS $$
DECLARE
    v_run BIGINT := {schema}.holdfast_current_run(p_workflow, p_instance_id);
BEGIN
    IF EXISTS (SELECT FROM {schema}.holdfast_task WHERE run = v_run AND unit = 0 AND bound) THEN
        PERFORM {schema}.holdfast_lock_affected(ARRAY[v_run], NULL);
    END IF;
    RETURN {schema}.holdfast_lock_current_run(p_workflow, p_instance_id);
END $$;

CREATE OR REPLACE FUNCTION {schema}.holdfast_merge_affected(
    p_a {schema}.holdfast_affected, p_b {schema}.holdfast_affected
) RETURNS {schema}.holdfast_affected LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW((p_a).ended || (p_b).ended, (p_a).woken || (p_b).woken,
               coalesce((p_a).work, false) OR coalesce((p_b).work, false))::{schema}.holdfast_affected
$$;

-- Text in ASCII: non-ASCII characters, and characters whose codes are in p_escaped, are written as JSON escapes. The
-- argument is BYTEA because it may hold lone surrogates, which TEXT cannot.
CREATE OR REPLACE FUNCTION {schema}.holdfast_ascii(p_text BYTEA, p_escaped INTEGER[]) RETURNS TEXT
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_ascii TEXT := '';
    v_at INTEGER := 0;
    v_byte INTEGER;
    v_trailing INTEGER;
    v_code INTEGER;
BEGIN
    WHILE v_at < length(p_text) LOOP
        v_byte := get_byte(p_text, v_at);
        v_trailing := CASE WHEN v_byte < 128 THEN 0 WHEN v_byte < 224 THEN 1 WHEN v_byte < 240 THEN 2 ELSE 3 END;
        v_code := CASE v_trailing WHEN 0 THEN v_byte WHEN 1 THEN v_byte & 31 WHEN 2 THEN v_byte & 15
                                  ELSE v_byte & 7 END;
        FOR i IN 1..v_trailing LOOP
            v_code := (v_code << 6) | (get_byte(p_text, v_at + i) & 63);
        END LOOP;
        v_at := v_at + 1 + v_trailing;
        v_ascii := v_ascii || CASE
            WHEN v_code BETWEEN 32 AND 126 AND v_code <> ALL (p_escaped) THEN chr(v_code)
            WHEN v_code < 65536 THEN '\u' || lpad(to_hex(v_code), 4, '0')
            ELSE '\u' || to_hex(55296 + ((v_code - 65536) >> 10)) || '\u' || to_hex(56320 + ((v_code - 65536) & 1023))
        END;
    END LOOP;
    RETURN v_ascii;
END $$;

-- Free text as a JSON string in ASCII; NULL becomes null. BYTEA, because TEXT cannot hold every text.
CREATE OR REPLACE FUNCTION {schema}.holdfast_json_string(p_text BYTEA) RETURNS BYTEA LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_text IS NULL THEN
        RETURN 'null'::bytea;
    ELSIF encode(p_text, 'escape') ~ '^[ !#-[\]-~]*$' AND position('\x5c'::bytea IN p_text) = 0 THEN
        RETURN '"'::bytea || p_text || '"'::bytea;
    END IF;
    RETURN convert_to('"' || {schema}.holdfast_ascii(p_text, '{34,92}') || '"', 'UTF8');
END $$;

CREATE OR REPLACE FUNCTION {schema}.holdfast_pid(p_workflow TEXT, p_instance_id TEXT) RETURNS BYTEA
LANGUAGE sql STABLE AS $$
    SELECT convert_to(p_workflow || '/' || p_instance_id, 'UTF8')
$$;

-- The current run of a pid; NULL if there is no such instance, or if the text is not a pid.
CREATE OR REPLACE FUNCTION {schema}.holdfast_run_of_pid(p_pid BYTEA) RETURNS BIGINT LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_pid TEXT := convert_from(p_pid, 'UTF8');
BEGIN
    RETURN {schema}.holdfast_current_run(split_part(v_pid, '/', 1), substr(v_pid, position('/' IN v_pid) + 1));
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
    RETURN NULL;
END $$;

-- Payload of the exit event of a run; output and error are the stored bytes.
CREATE OR REPLACE FUNCTION {schema}.holdfast_exit_payload(p_watch INTEGER, p_run {schema}.holdfast_run) RETURNS BYTEA
LANGUAGE sql STABLE AS $$
    SELECT convert_to('{"watch":' || p_watch || ',"status":"' || (p_run).status || '","output":', 'UTF8')
        || coalesce((p_run).output, 'null'::bytea) || ',"error":'::bytea || coalesce((p_run).error, 'null'::bytea)
        || ',"note":'::bytea || {schema}.holdfast_json_string((p_run).note) || '}'::bytea
$$;

-- What the other functions are made of: the time, locks, and text as JSON.
--
-- Why functions and not statements: each is one round trip and one transaction, and each statement inside sees what
-- was committed before *it* began. That is what lets a commit that waited for a lock see the event whose sender held
-- it; the parts of one big statement would all look at the past. Their settings keep the planner off plans that are
-- right only while a table is small: everything is found by an index, row by row.
--
-- The order of locks, everywhere: tasks by their run, then runs. Whoever changes a run that has not ended locks its
-- task (unit 0), and only then, if at all, those of its other units. Only claims do without: they wait for no task.


-- The time of a call (p_now where a test has a clock), in a transaction that is durable once it has ended.
-- One expression, so that it costs no call where it is used.
CREATE FUNCTION {schema}.holdfast_begin(p_now BIGINT) RETURNS BIGINT LANGUAGE sql AS $$
    SELECT CASE WHEN current_setting('synchronous_commit') = 'off'
                 AND set_config('synchronous_commit', 'on', true) IS NULL THEN NULL
           ELSE coalesce(p_now, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) END
$$;

CREATE FUNCTION {schema}.holdfast_current(p_workflow TEXT, p_instance_id TEXT) RETURNS BIGINT LANGUAGE sql STABLE AS $$
    SELECT id FROM {schema}.holdfast_run
     WHERE workflow = p_workflow AND instance_id = p_instance_id ORDER BY number DESC LIMIT 1
$$;

-- The current run, locked: it stays the current one until the transaction ends. The lock of a living run is its task,
-- and whoever has that knows that nothing came after the run; the lock of one that has ended is its own row.
CREATE FUNCTION {schema}.holdfast_lock(p_workflow TEXT, p_instance_id TEXT) RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    v_run BIGINT := {schema}.holdfast_current(p_workflow, p_instance_id);
    v_locked BIGINT;
BEGIN
    WHILE v_run IS DISTINCT FROM v_locked LOOP
        v_locked := v_run;
        PERFORM FROM {schema}.holdfast_task WHERE run = v_run AND unit = 0 FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        PERFORM FROM {schema}.holdfast_run WHERE id = v_run FOR NO KEY UPDATE;
        v_run := {schema}.holdfast_current(p_workflow, p_instance_id);
    END LOOP;
    RETURN v_run;
END $$;

-- Those that live. OFFSET 0 here and elsewhere: looked up one by one, and not joined in some other order.
CREATE FUNCTION {schema}.holdfast_children(p_parent BIGINT) RETURNS TABLE (id BIGINT, parent_close TEXT, kind TEXT)
LANGUAGE sql STABLE AS $$
    SELECT id, parent_close, kind FROM {schema}.holdfast_run
     WHERE parent_run = p_parent AND parent_run IS NOT NULL AND completed_at IS NULL OFFSET 0
$$;

-- Locks the tasks of p_also, of p_ending, and of all whom the end of those concerns: who watches them, and their living
-- children, down to the last. Again until nobody new is among them: one that had to be waited for may have a successor.
CREATE FUNCTION {schema}.holdfast_lock_family(p_ending BIGINT[], p_also BIGINT[]) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_all BIGINT[];
    v_locked BIGINT[];
BEGIN
    LOOP
        WITH RECURSIVE ending (run) AS (
            SELECT unnest(p_ending)
            UNION
            SELECT c.id FROM ending AS e CROSS JOIN LATERAL {schema}.holdfast_children(e.run) AS c
             WHERE c.parent_close <> 'abandon'
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

-- As holdfast_lock, for a run that is about to end.
CREATE FUNCTION {schema}.holdfast_lock_to_end(p_workflow TEXT, p_instance_id TEXT) RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    v_run BIGINT := {schema}.holdfast_current(p_workflow, p_instance_id);
BEGIN
    IF EXISTS (SELECT FROM {schema}.holdfast_task WHERE run = v_run AND unit = 0 AND bound) THEN
        PERFORM {schema}.holdfast_lock_family(ARRAY[v_run], NULL);
    END IF;
    RETURN {schema}.holdfast_lock(p_workflow, p_instance_id);
END $$;

CREATE FUNCTION {schema}.holdfast_and(p_one {schema}.holdfast_touched, p_other {schema}.holdfast_touched)
RETURNS {schema}.holdfast_touched LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW((p_one).ended || (p_other).ended, (p_one).woken || (p_other).woken,
               coalesce((p_one).work, false) OR coalesce((p_other).work, false))::{schema}.holdfast_touched
$$;

-- Text in ASCII: all other characters, and those whose codes are in p_escaped, are written as JSON escapes. The argument
-- may hold lone surrogates, which TEXT cannot.
CREATE FUNCTION {schema}.holdfast_ascii(p_text BYTEA, p_escaped INTEGER[]) RETURNS TEXT LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_ascii TEXT := '';
    v_at INTEGER := 0;
    v_byte INTEGER;
    v_more INTEGER;
    v_code INTEGER;
BEGIN
    WHILE v_at < length(p_text) LOOP
        v_byte := get_byte(p_text, v_at);
        v_more := CASE WHEN v_byte < 128 THEN 0 WHEN v_byte < 224 THEN 1 WHEN v_byte < 240 THEN 2 ELSE 3 END;
        v_code := CASE v_more WHEN 0 THEN v_byte WHEN 1 THEN v_byte & 31 WHEN 2 THEN v_byte & 15 ELSE v_byte & 7 END;
        FOR i IN 1..v_more LOOP
            v_code := (v_code << 6) | (get_byte(p_text, v_at + i) & 63);
        END LOOP;
        v_at := v_at + 1 + v_more;
        v_ascii := v_ascii || CASE
            WHEN v_code BETWEEN 32 AND 126 AND v_code <> ALL (p_escaped) THEN chr(v_code)
            WHEN v_code < 65536 THEN '\u' || lpad(to_hex(v_code), 4, '0')
            ELSE '\u' || to_hex(55296 + ((v_code - 65536) >> 10)) || '\u' || to_hex(56320 + ((v_code - 65536) & 1023))
        END;
    END LOOP;
    RETURN v_ascii;
END $$;

-- Free text as a JSON string of nothing but ASCII; TEXT could not hold all of it. NULL is null.
CREATE FUNCTION {schema}.holdfast_json(p_text BYTEA) RETURNS BYTEA LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_text IS NULL THEN
        RETURN 'null'::bytea;
    ELSIF encode(p_text, 'escape') ~ '^[ !#-[\]-~]*$' AND position('\x5c'::bytea IN p_text) = 0 THEN
        RETURN '"'::bytea || p_text || '"'::bytea;
    END IF;
    RETURN convert_to('"' || {schema}.holdfast_ascii(p_text, '{34,92}') || '"', 'UTF8');
END $$;

CREATE FUNCTION {schema}.holdfast_pid(p_workflow TEXT, p_instance_id TEXT) RETURNS BYTEA LANGUAGE sql STABLE AS $$
    SELECT convert_to(p_workflow || '/' || p_instance_id, 'UTF8')
$$;

-- The current run of a pid; NULL if there is none, or if it is no pid at all.
CREATE FUNCTION {schema}.holdfast_run_of(p_pid BYTEA) RETURNS BIGINT LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_pid TEXT := convert_from(p_pid, 'UTF8');
BEGIN
    RETURN {schema}.holdfast_current(split_part(v_pid, '/', 1), substr(v_pid, position('/' IN v_pid) + 1));
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
    RETURN NULL;
END $$;

-- What somebody who watches a run is told of its end, made of the very bytes that are stored.
CREATE FUNCTION {schema}.holdfast_exit(p_watch INTEGER, p_run {schema}.holdfast_run) RETURNS BYTEA
LANGUAGE sql STABLE AS $$
    SELECT convert_to('{"watch":' || p_watch || ',"status":"' || (p_run).status || '","output":', 'UTF8')
        || coalesce((p_run).output, 'null'::bytea) || ',"error":'::bytea || coalesce((p_run).error, 'null'::bytea)
        || ',"note":'::bytea || {schema}.holdfast_json((p_run).note) || '}'::bytea
$$;

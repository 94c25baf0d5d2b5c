-- Ids of the blobs to which a stored value refers: those of its envelope, and those of the envelope of another run's
-- value in an exit or a reply. The data of a chunk begins with the time and the length of its first item.
CREATE OR REPLACE FUNCTION {schema}.holdfast_blobs_of(p_value BYTEA) RETURNS SETOF TEXT LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_json JSON;
    v_length INTEGER;
BEGIN
    IF p_value IS NULL OR position('"blobs":['::bytea IN p_value) = 0 THEN
        RETURN;
    END IF;
    IF get_byte(p_value, 0) BETWEEN 48 AND 57 THEN
        p_value := substring(p_value FROM position(' '::bytea IN p_value) + 1);
        v_length := convert_from(substring(p_value FROM 1 FOR position(' '::bytea IN p_value) - 1), 'UTF8')::integer;
        p_value := substring(p_value FROM position(' '::bytea IN p_value) + 1 FOR v_length);
        IF get_byte(p_value, 0) <> 32 OR position('"blobs":['::bytea IN p_value) = 0 THEN
            RETURN;
        END IF;
    END IF;
    v_json := convert_from(p_value, 'UTF8')::json;
    IF substring(p_value FROM 1 FOR 1) = '\x20'::bytea THEN
        RETURN QUERY SELECT json_array_elements_text(v_json -> 'blobs');
    ELSIF position('"output": {'::bytea IN p_value) > 0 THEN
        RETURN QUERY SELECT json_array_elements_text(v_json -> 'output' -> 'blobs');
    ELSIF position('"value": {'::bytea IN p_value) > 0 THEN
        RETURN QUERY SELECT json_array_elements_text(v_json -> 'value' -> 'blobs');
    END IF;
END $$;

-- The trigger that counts references to blobs; its argument is the column. Rows of blobs are locked in the order of their
-- ids, so that two transactions do not wait for each other.
CREATE OR REPLACE FUNCTION {schema}.holdfast_count_blobs() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_old BYTEA;
    v_new BYTEA;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        EXECUTE format('SELECT ($1).%I', TG_ARGV[0]) USING OLD INTO v_old;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        EXECUTE format('SELECT ($1).%I', TG_ARGV[0]) USING NEW INTO v_new;
    END IF;
    INSERT INTO {schema}.holdfast_blob AS b (id, refs, used, at)
    SELECT id, sum(change), true, 0 FROM (
        SELECT o AS id, -1 AS change FROM {schema}.holdfast_blobs_of(v_old) AS o
        UNION ALL SELECT n, 1 FROM {schema}.holdfast_blobs_of(v_new) AS n) AS changes
     GROUP BY id ORDER BY id
    ON CONFLICT (id) DO UPDATE SET refs = b.refs + excluded.refs, used = true;
    RETURN NULL;
END $$;

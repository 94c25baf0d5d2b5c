-- Streams: appends of items (StreamWrite).

-- True if the value of an item is an envelope that refers to a blob. Such an item has a chunk of its own.
CREATE OR REPLACE FUNCTION {schema}.holdfast_holds_blob(p_item BYTEA) RETURNS BOOLEAN LANGUAGE sql IMMUTABLE AS $$
    SELECT position('\x20207b'::bytea IN substring(p_item FROM 1 FOR 40)) > 0
       AND position('"blobs":['::bytea IN p_item) > 0
$$;

-- Append the items of one writer to a stream. The task of the run must be locked, or its commit be in progress.
-- p_items are packed items. Items that the store has already are skipped: p_start is the number of items that the
-- writer wrote before them. verdict: a WriteVerdict. p_step_key NULL: the workflow's code.
CREATE OR REPLACE FUNCTION {schema}.holdfast_append_stream(
    p_run BIGINT, p_unit BIGINT, p_epoch BIGINT, p_name TEXT, p_step_key BYTEA, p_attempt BIGINT, p_start BIGINT,
    p_items BYTEA[], p_closes BOOLEAN, OUT verdict INTEGER, OUT items BIGINT, OUT size BIGINT
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_head {schema}.holdfast_stream;
    v_tail {schema}.holdfast_chunk;
    v_written BIGINT;
    v_from INTEGER;
    v_to INTEGER := cardinality(p_items);
    v_n INTEGER;
    v_bytes BIGINT;
    v_data BYTEA;
    v_marker BOOLEAN;
    v_alone BOOLEAN;
BEGIN
    INSERT INTO {schema}.holdfast_stream (run, name, items, size, code_items, markers, tail)
    VALUES (p_run, p_name, 0, 0, 0, 0, 0) ON CONFLICT (run, name) DO NOTHING;
    SELECT * INTO v_head FROM {schema}.holdfast_stream WHERE run = p_run AND name = p_name FOR UPDATE;
    IF p_step_key IS NOT NULL AND v_head.markers > 0 AND EXISTS (
        SELECT FROM {schema}.holdfast_stream_closers(p_run, p_name)) THEN
        verdict := {WriteVerdict.CLOSED};
        items := v_head.items;
        size := v_head.size;
        RETURN;
    END IF;
    SELECT * INTO v_tail FROM {schema}.holdfast_chunk WHERE run = p_run AND name = p_name AND first = v_head.tail;
    IF p_step_key IS NULL THEN
        v_written := v_head.code_items;
    ELSE
        SELECT start + count INTO v_written FROM {schema}.holdfast_chunk
         WHERE run = p_run AND name = p_name AND step_key = p_step_key AND epoch = p_epoch AND attempt = p_attempt
         ORDER BY first DESC LIMIT 1;
    END IF;
    v_from := 1 + greatest(0, coalesce(v_written, 0) - p_start);
    v_marker := p_closes AND v_from <= v_to + 1;
    IF p_step_key IS NULL THEN
        v_head.code_items := v_head.code_items + greatest(0, v_to - v_from + 1) + v_marker::int;
    END IF;
    IF v_tail.closes IS FALSE AND v_tail.step_key IS NOT DISTINCT FROM p_step_key
       AND (p_step_key IS NULL OR (v_tail.epoch = p_epoch AND v_tail.attempt = p_attempt))
       AND NOT {schema}.holdfast_holds_blob(v_tail.data) THEN
        v_n := v_tail.count;
        v_bytes := length(v_tail.data);
    ELSE
        v_n := {CHUNK_ITEMS};
    END IF;
    WHILE v_from <= v_to LOOP
        v_alone := {schema}.holdfast_holds_blob(p_items[v_from]);
        IF NOT v_alone AND v_n < {CHUNK_ITEMS} AND v_bytes < {CHUNK_BYTES} THEN
            v_tail := NULL;
        ELSE
            v_head.tail := v_head.items + 1;
            v_n := 0;
            v_bytes := 0;
            INSERT INTO {schema}.holdfast_chunk (run, name, first, count, step_key, unit, epoch, attempt, start, closes, data)
            VALUES (p_run, p_name, v_head.tail, 0, p_step_key, p_unit, CASE WHEN p_step_key IS NOT NULL THEN p_epoch END,
                    CASE WHEN p_step_key IS NOT NULL THEN p_attempt END, p_start + v_from - 1, false, '');
        END IF;
        v_data := '';
        WHILE v_from <= v_to AND v_n < {CHUNK_ITEMS} AND v_bytes < {CHUNK_BYTES} LOOP
            v_data := v_data || p_items[v_from];
            v_bytes := v_bytes + length(p_items[v_from]);
            v_head.size := v_head.size + length(p_items[v_from]);
            v_head.items := v_head.items + 1;
            v_n := v_n + 1;
            v_from := v_from + 1;
            EXIT WHEN v_alone OR (v_from <= v_to AND {schema}.holdfast_holds_blob(p_items[v_from]));
        END LOOP;
        UPDATE {schema}.holdfast_chunk SET count = v_n, data = data || v_data
         WHERE run = p_run AND name = p_name AND first = v_head.tail;
        IF v_alone THEN
            v_n := {CHUNK_ITEMS};
        END IF;
    END LOOP;
    IF v_marker THEN
        v_head.items := v_head.items + 1;
        v_head.tail := v_head.items;
        v_head.markers := v_head.markers + 1;
        INSERT INTO {schema}.holdfast_chunk (run, name, first, count, step_key, unit, epoch, attempt, start, closes, data)
        VALUES (p_run, p_name, v_head.tail, 1, p_step_key, p_unit, CASE WHEN p_step_key IS NOT NULL THEN p_epoch END,
                CASE WHEN p_step_key IS NOT NULL THEN p_attempt END, p_start + v_to, true, '');
    END IF;
    UPDATE {schema}.holdfast_stream
       SET items = v_head.items, size = v_head.size, code_items = v_head.code_items, markers = v_head.markers,
           tail = v_head.tail
     WHERE run = p_run AND name = p_name;
    verdict := {WriteVerdict.WRITTEN};
    items := v_head.items;
    size := v_head.size;
END $$;

-- Append items of running attempts. p_from and p_to: the positions of the items of each write. The tasks are locked first,
-- then the streams, both in the order of runs, so that two calls do not wait for each other.
CREATE OR REPLACE FUNCTION {schema}.holdfast_write_streams(
    p_store TEXT, p_run BIGINT[], p_unit BIGINT[], p_owner TEXT[], p_epoch BIGINT[], p_name TEXT[], p_step_key BYTEA[],
    p_attempt BIGINT[], p_start BIGINT[], p_from INTEGER[], p_to INTEGER[], p_closes BOOLEAN[], p_items BYTEA[]
) RETURNS TABLE (verdict INTEGER, items BIGINT, size BIGINT) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_owned BOOLEAN[] := array_fill(false, ARRAY[cardinality(p_run)]);
    v_verdict INTEGER[] := array_fill({WriteVerdict.LOST}, ARRAY[cardinality(p_run)]);
    v_items BIGINT[] := array_fill(0::bigint, ARRAY[cardinality(p_run)]);
    v_size BIGINT[] := array_fill(0::bigint, ARRAY[cardinality(p_run)]);
    v_one RECORD;
BEGIN
    FOR v_one IN
        SELECT a.ord FROM unnest(p_run, p_unit, p_owner, p_epoch) WITH ORDINALITY AS a (run, unit, owner, epoch, ord)
          JOIN {schema}.holdfast_task AS t
            ON t.run = a.run AND t.unit = a.unit AND (t.owner = a.owner) IS TRUE AND t.epoch = a.epoch
         ORDER BY t.run, t.unit FOR NO KEY UPDATE OF t
    LOOP
        v_owned[v_one.ord] := true;
    END LOOP;
    FOR v_one IN
        SELECT a.ord, w.verdict, w.items, w.size
          FROM (SELECT o.ord FROM unnest(p_run, p_name) WITH ORDINALITY AS o (run, name, ord)
                 WHERE v_owned[o.ord] ORDER BY o.run, o.name, o.ord) AS a
         CROSS JOIN LATERAL {schema}.holdfast_append_stream(
               p_run[a.ord], p_unit[a.ord], p_epoch[a.ord], p_name[a.ord], p_step_key[a.ord], p_attempt[a.ord],
               p_start[a.ord], p_items[p_from[a.ord] : p_to[a.ord]], p_closes[a.ord]) AS w
    LOOP
        v_verdict[v_one.ord] := v_one.verdict;
        v_items[v_one.ord] := v_one.items;
        v_size[v_one.ord] := v_one.size;
    END LOOP;
    PERFORM pg_notify('{channel}', 'stream ' || p_store);
    RETURN QUERY SELECT * FROM unnest(v_verdict, v_items, v_size);
END $$;

-- The writers that closed a stream: steps, or NULL for the workflow's code.
CREATE OR REPLACE FUNCTION {schema}.holdfast_stream_closers(p_run BIGINT, p_name TEXT)
RETURNS TABLE (step_key BYTEA) LANGUAGE sql STABLE AS $$
    SELECT c.step_key
      FROM {schema}.holdfast_chunk AS c
      LEFT JOIN {schema}.holdfast_fact AS f
        ON f.run = c.run AND f.state = {FactState.SETTLEMENT} AND f.key = c.step_key
       AND f.n = c.epoch * 16777216 + c.attempt
     WHERE c.run = p_run AND c.name = p_name AND c.closes AND (c.step_key IS NULL OR f.ok)
     ORDER BY c.first
$$;

-- The streams of a run. closers: the writers that closed the stream; NULL: no writer has written a close marker.
CREATE OR REPLACE FUNCTION {schema}.holdfast_stream_heads(p_run BIGINT)
RETURNS TABLE (name TEXT, items BIGINT, size BIGINT, code_items BIGINT, closers BYTEA[]) LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
        SELECT s.name, s.items, s.size, s.code_items,
               CASE WHEN s.markers > 0 THEN
                   ARRAY(SELECT c.step_key FROM {schema}.holdfast_stream_closers(p_run, s.name) AS c) END
          FROM {schema}.holdfast_stream AS s WHERE s.run = p_run ORDER BY s.name;
END $$;

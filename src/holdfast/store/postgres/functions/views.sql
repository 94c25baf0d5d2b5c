-- Views of chains and graphs, for users' SQL.

-- Text as TEXT; characters that TEXT cannot hold are written as JSON escapes.
CREATE OR REPLACE FUNCTION {schema}.holdfast_text(p_text BYTEA) RETURNS TEXT LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN convert_from(p_text, 'UTF8');
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
    RETURN trim(BOTH '"' FROM convert_from({schema}.holdfast_json_string(p_text), 'UTF8'));
END $$;

-- A JSON document as TEXT, in ASCII if the database's encoding lacks some of its characters.
CREATE OR REPLACE FUNCTION {schema}.holdfast_json_text(p_json BYTEA) RETURNS TEXT LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN convert_from(p_json, 'UTF8');
EXCEPTION WHEN untranslatable_character THEN
    RETURN {schema}.holdfast_ascii(p_json, '{}');
END $$;

-- A member of a JSON object; NULL if the member is absent or the document is not an object. PostgreSQL rejects a
-- document with NUL or lone surrogates, even in other members, so these are replaced by U+FFFD.
CREATE OR REPLACE FUNCTION {schema}.holdfast_json_member(p_json BYTEA, p_key TEXT) RETURNS JSON
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_text TEXT := {schema}.holdfast_json_text(p_json);
BEGIN
    IF ltrim(v_text) NOT LIKE '{%' THEN
        RETURN NULL;
    END IF;
    RETURN v_text::json -> p_key;
EXCEPTION WHEN untranslatable_character OR invalid_text_representation THEN
    RETURN regexp_replace(v_text, '\\u(0000|[dD][89a-fA-F][0-9a-fA-F]{2})', '\\ufffd', 'g')::json -> p_key;
END $$;

CREATE OR REPLACE VIEW {schema}.holdfast_chain_instance AS
SELECT r.id AS run, r.instance_id, r.workflow AS workflow_type,
       ({schema}.holdfast_json_member(r.options, 'version') #>> '{}')::bigint AS workflow_version,
       CASE r.status WHEN {Status.COMPLETE} THEN 'COMPLETED' WHEN {Status.ERRORED} THEN 'FAILED'
                     WHEN {Status.CANCELLED} THEN 'CANCELED'
                     WHEN {Status.TERMINATED} THEN 'CANCELED' ELSE 'RUNNING' END AS status,
       c.n AS current_step_seq, {schema}.holdfast_text(c.key) AS current_step_type, r.created_at,
       CASE WHEN r.status = {Status.COMPLETE} THEN r.completed_at END AS completed_at,
       CASE WHEN r.status = {Status.ERRORED} THEN r.completed_at END AS failed_at
  FROM {schema}.holdfast_run AS r
  LEFT JOIN LATERAL (
       SELECT p.n, p.key
         FROM {schema}.holdfast_fact AS p
         LEFT JOIN {schema}.holdfast_fact AS d
           ON d.run = p.run AND d.state = {FactState.RESULT} AND d.key = p.key AND d.n = 0 AND d.ok
        WHERE p.run = r.id AND p.state = {FactState.PLAN}
        ORDER BY d.run IS NOT NULL, CASE WHEN d.run IS NULL THEN p.n ELSE -p.n END LIMIT 1) AS c ON true
 WHERE r.kind = 'chain';

-- The columns that come from the task apply to the current step only.
CREATE OR REPLACE VIEW {schema}.holdfast_chain_step AS
SELECT i.run, i.instance_id, p.n AS step_seq, {schema}.holdfast_text(p.key) AS step_type, s.status,
       coalesce(d.attempts, (SELECT count(*) FROM {schema}.holdfast_fact AS f
                              WHERE f.run = p.run AND f.state = {FactState.FAILURE} AND f.key = p.key)
                  + coalesce(t.lost::int, 0))
           AS attempts,
       p.max_attempts,
       CASE WHEN s.status = 'READY' THEN t.run_at END AS next_run_at,
       CASE WHEN s.status = 'RUNNING' THEN t.owner END AS locked_by,
       CASE WHEN s.status = 'RUNNING' THEN greatest(t.lease_until, coalesce(k.seen_at + t.lease_ms, k.lease_until)) END
           AS locked_until,
       CASE WHEN s.status = 'WAITING' THEN w.event_type END AS waiting_event_type,
       CASE WHEN s.status = 'WAITING' THEN w.wake_at END AS deadline_at,
       CASE WHEN t.lost AND d.run IS NULL THEN 'LEASE_EXPIRED'
            WHEN NOT d.ok THEN {schema}.holdfast_json_member(d.value, 'message') #>> '{}'
            ELSE (SELECT {schema}.holdfast_json_member(f.value, 'message') #>> '{}' FROM {schema}.holdfast_fact AS f
                   WHERE f.run = p.run AND f.state = {FactState.FAILURE} AND f.key = p.key
                   ORDER BY f.n DESC LIMIT 1) END AS last_error
  FROM {schema}.holdfast_chain_instance AS i
  JOIN {schema}.holdfast_fact AS p ON p.run = i.run AND p.state = {FactState.PLAN}
  LEFT JOIN {schema}.holdfast_fact AS d ON d.run = p.run AND d.state = {FactState.RESULT} AND d.key = p.key AND d.n = 0
  LEFT JOIN {schema}.holdfast_task AS t ON t.run = i.run AND t.unit = 0 AND p.n = i.current_step_seq
  LEFT JOIN {schema}.holdfast_worker AS k ON k.id = t.owner
  LEFT JOIN LATERAL (
       SELECT b.event_type, b.wake_at
         FROM {schema}.holdfast_fact AS b
        WHERE b.run = p.run AND b.state = {FactState.START} AND b.key = p.key
          AND NOT EXISTS (SELECT FROM {schema}.holdfast_fact AS x
                           WHERE x.run = b.run AND x.state = {FactState.WOKEN} AND x.key = b.key AND x.n = b.n)
        ORDER BY b.n DESC LIMIT 1) AS w ON true
 CROSS JOIN LATERAL (
       SELECT CASE WHEN d.ok THEN 'DONE'
                   WHEN NOT d.ok THEN 'DEAD'
                   WHEN p.n > i.current_step_seq THEN 'PENDING'
                   WHEN t.owner IS NOT NULL THEN 'RUNNING'
                   WHEN w IS DISTINCT FROM NULL AND (t.run_at IS NULL OR t.run_at >= w.wake_at) THEN 'WAITING'
                   ELSE 'READY' END) AS s (status);

CREATE OR REPLACE VIEW {schema}.holdfast_graph_fact AS
SELECT r.id AS run, r.workflow || '/' || r.instance_id AS pid,
       CASE f.state WHEN {FactState.RESULT} THEN 'result/' || {schema}.holdfast_text(f.key)
                    WHEN {FactState.START} THEN 'start/' || {schema}.holdfast_text(f.key) || '/' || f.at
                    WHEN {FactState.PLAN} THEN 'meta'
                    ELSE 'tombstone' END AS key,
       CASE f.state
            WHEN {FactState.RESULT} THEN '{"status":"'
                || CASE WHEN f.kind = 'skipped' THEN 'skipped' WHEN f.ok THEN 'ok' ELSE 'error' END
                || '","data":' || coalesce({schema}.holdfast_json_text(f.value), 'null') || ',"ts":' || f.at || '}'
            WHEN {FactState.TOMBSTONE} THEN '{"reason":'
                || coalesce({schema}.holdfast_json_member(f.value, 'reason')::text,
                            {schema}.holdfast_json_text(f.value), 'null')
                || ',"ts":' || f.at || '}'
            ELSE {schema}.holdfast_json_text(f.value) END AS value
  FROM {schema}.holdfast_run AS r
  JOIN {schema}.holdfast_fact AS f ON f.run = r.id
 WHERE r.kind = {GRAPH} AND (f.state IN ({FactState.RESULT}, {FactState.START}, {FactState.TOMBSTONE})
                           OR (f.state = {FactState.PLAN} AND f.key = 'meta'));

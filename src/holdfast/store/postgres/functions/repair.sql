-- Runs that continue from the recorded history of another run, and the deletion of instances.

-- Insert a run that continues the history of p_source: its successor or, with p_fork_id, the first run of another
-- instance. The run is due at once, or when its units are done. It has the PLAN facts of the source, and no others yet.
CREATE OR REPLACE FUNCTION {schema}.holdfast_insert_continuation(
    p_now BIGINT, p_store TEXT, p_source BIGINT, p_token BIGINT, p_params BYTEA, p_attempt BIGINT, p_expires_ms BIGINT,
    p_expiry TEXT, p_options BYTEA, p_fork_id TEXT, p_unit BIGINT[], p_unit_key BYTEA[], p_unit_missing BIGINT[]
) RETURNS BIGINT LANGUAGE plpgsql
{planner.nested_loops} AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_new BIGINT;
    v_before {schema}.holdfast_run;
BEGIN
    SELECT * INTO v_before FROM {schema}.holdfast_run WHERE id = p_source;
    v_new := {schema}.holdfast_insert_successor(
        v_now, p_store, p_source, p_token, p_params, v_now, p_attempt, v_now + p_expires_ms, p_expiry, p_options,
        p_unit, p_unit_key, p_unit_missing, true, p_fork_id);
    IF p_fork_id IS NOT NULL THEN
        UPDATE {schema}.holdfast_run SET forked_from = v_before.instance WHERE id = v_new;
        INSERT INTO {schema}.holdfast_term (instance, workflow, key, text, number)
        SELECT v_new, t.workflow, t.key, t.text, t.number FROM {schema}.holdfast_term AS t
         WHERE t.instance = v_before.instance;
    END IF;
    RETURN v_new;
END $$;

-- Delete all runs of an instance, which have ended, with all their rows.
CREATE OR REPLACE FUNCTION {schema}.holdfast_delete_instance(p_workflow TEXT, p_instance_id TEXT) RETURNS void
LANGUAGE plpgsql
{planner.nested_loops} AS $$
#variable_conflict use_column
DECLARE
    v_runs BIGINT[] := ARRAY(SELECT id FROM {schema}.holdfast_run
                              WHERE workflow = p_workflow AND instance_id = p_instance_id);
BEGIN
    DELETE FROM {schema}.holdfast_term
     WHERE instance IN (SELECT DISTINCT instance FROM {schema}.holdfast_run WHERE id = ANY (v_runs));
    DELETE FROM {schema}.holdfast_fact WHERE run = ANY (v_runs);
    DELETE FROM {schema}.holdfast_event WHERE run = ANY (v_runs);
    DELETE FROM {schema}.holdfast_log WHERE run = ANY (v_runs);
    DELETE FROM {schema}.holdfast_stream WHERE run = ANY (v_runs);
    DELETE FROM {schema}.holdfast_chunk WHERE run = ANY (v_runs);
    DELETE FROM {schema}.holdfast_outlet WHERE run = ANY (v_runs);
    DELETE FROM {schema}.holdfast_outbox WHERE run = ANY (v_runs);
    DELETE FROM {schema}.holdfast_watch WHERE target = ANY (v_runs);
    DELETE FROM {schema}.holdfast_watch WHERE watcher = ANY (v_runs);
    DELETE FROM {schema}.holdfast_run WHERE id = ANY (v_runs);
END $$;

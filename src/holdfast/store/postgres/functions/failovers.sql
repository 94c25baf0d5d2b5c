-- Failovers: another server, which may lack the last commits of the one before, has taken over.
--
-- A claim of the old server is worthless on the new one, even if its row is there: commits that followed the claim may
-- be lost, and the worker that made them would continue after a gap in the run's history. The first connection to the
-- new server therefore ends all claims. It also advances the sequence of run ids by more than the number of runs that
-- can be lost, so that no id is used for two runs.

-- Identifies the cluster and the timeline that it writes: a promoted standby, a restored backup and a new cluster have
-- other values. NULL: the server is a standby. 0: unknown, because the server does not have these functions or the user
-- may not call them.
CREATE OR REPLACE FUNCTION {schema}.holdfast_timeline() RETURNS BIGINT LANGUAGE plpgsql AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN NULL;
    END IF;
    RETURN hashtextextended((SELECT s.system_identifier FROM pg_control_system() AS s) || ' '
                            || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), 0);
EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function THEN
    RETURN 0;
END $$;

-- Called first on every connection. Returns the timeline of the server.
CREATE OR REPLACE FUNCTION {schema}.holdfast_enter_timeline(p_now BIGINT, p_store TEXT) RETURNS BIGINT
LANGUAGE plpgsql AS $$
DECLARE
    v_timeline BIGINT := {schema}.holdfast_timeline();
BEGIN
    IF v_timeline IS NOT NULL
       AND NOT EXISTS (SELECT FROM {schema}.holdfast_meta WHERE key = 'timeline' AND value = v_timeline) THEN
        PERFORM {schema}.holdfast_begin_timeline(p_now, p_store, v_timeline);
    END IF;
    RETURN v_timeline;
END $$;

-- Raise an error if the server has another timeline than the store knows; for connections through a pooler, which may
-- lead to another server after a failover without being closed.
CREATE OR REPLACE FUNCTION {schema}.holdfast_check_timeline(p_timeline BIGINT) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF {schema}.holdfast_timeline() <> p_timeline THEN
        RAISE EXCEPTION 'the server has failed over' USING ERRCODE = {FAILED_OVER};
    END IF;
END $$;

-- Record the timeline, and end all claims of an earlier one. Runs as the owner of the schema, because setval needs a
-- privilege that workers do not have.
CREATE OR REPLACE FUNCTION {schema}.holdfast_begin_timeline(p_now BIGINT, p_store TEXT, p_timeline BIGINT) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_known BIGINT;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('holdfast timeline of {schema}', 0));
    SELECT value INTO v_known FROM {schema}.holdfast_meta WHERE key = 'timeline';
    IF v_known = p_timeline OR p_timeline IS DISTINCT FROM {schema}.holdfast_timeline() THEN
        RETURN;
    END IF;
    INSERT INTO {schema}.holdfast_meta (key, value) VALUES ('timeline', p_timeline)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value;
    IF v_known IS NULL THEN
        RETURN;
    END IF;
    UPDATE {schema}.holdfast_worker SET lease_until = least(lease_until, v_now);
    UPDATE {schema}.holdfast_task SET lease_until = v_now, lease_ms = NULL WHERE owner IS NOT NULL;
    PERFORM {schema}.holdfast_reap(v_now, p_store, {MAX_INTEGER}, {MAX_INTEGER});
    UPDATE {schema}.holdfast_outlet SET owner = NULL, run_at = v_now WHERE owner IS NOT NULL;
    PERFORM setval('{schema}.holdfast_run_id', nextval('{schema}.holdfast_run_id') + {LOST_RUN_IDS});
END $$;

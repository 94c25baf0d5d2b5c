-- Outbound events and their delivery.

-- Append events to the outboxes of runs whose tasks are locked. Entries whose p_run is NULL are skipped. Returns true
-- if any event was added.
CREATE OR REPLACE FUNCTION {schema}.holdfast_outbox_add(
    p_now BIGINT, p_run BIGINT[], p_type BYTEA[], p_payload BYTEA[], p_step BYTEA[], p_trace TEXT[]
) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    WITH added AS (
        INSERT INTO {schema}.holdfast_outbox (run, n, step, type, payload, created_at, run_at, trace)
        SELECT o.run, coalesce((SELECT max(n) FROM {schema}.holdfast_outbox WHERE run = o.run), 0)
                   + row_number() OVER (PARTITION BY o.run ORDER BY o.ord), o.step, o.type, o.payload, p_now, p_now, o.trace
          FROM unnest(p_run, p_type, p_payload, p_step, p_trace)
               WITH ORDINALITY AS o (run, type, payload, step, trace, ord)
         WHERE o.run IS NOT NULL
        RETURNING run, n
    )
    -- An existing row is only locked: the transaction that settles its event finds the new ones.
    INSERT INTO {schema}.holdfast_outlet AS o (run, n, run_at)
    SELECT run, min(n), p_now FROM added GROUP BY run ORDER BY run
    ON CONFLICT (run) DO UPDATE SET run_at = o.run_at;
    RETURN FOUND;
END $$;

-- Set the outlet of a run, which is locked, to the first pending event; without one, delete the outlet.
CREATE OR REPLACE FUNCTION {schema}.holdfast_outbox_next(p_run BIGINT) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_n BIGINT;
    v_run_at BIGINT;
BEGIN
    SELECT n, run_at INTO v_n, v_run_at FROM {schema}.holdfast_outbox
     WHERE run = p_run AND delivered_at IS NULL AND parked_at IS NULL ORDER BY n LIMIT 1;
    IF FOUND THEN
        UPDATE {schema}.holdfast_outlet SET n = v_n, run_at = v_run_at, owner = NULL WHERE run = p_run;
    ELSE
        DELETE FROM {schema}.holdfast_outlet WHERE run = p_run;
    END IF;
END $$;

-- Claim due outbound events. p_is_retry: an earlier attempt of this call may have been committed; the events it claimed
-- are returned too. The last row has no run; its next_due is the earliest time at which an event can be claimed.
CREATE OR REPLACE FUNCTION {schema}.holdfast_outbox_claim(
    p_now BIGINT, p_owner TEXT, p_lease_ms BIGINT, p_limit BIGINT, p_token BIGINT, p_is_retry BOOLEAN
) RETURNS TABLE (next_due BIGINT, run BIGINT, n BIGINT, workflow TEXT, instance_id TEXT, number BIGINT, step BYTEA,
                 type BYTEA, payload BYTEA, created_at BIGINT, attempts BIGINT, run_at BIGINT, error BYTEA,
                 delivered_at BIGINT, parked_at BIGINT, trace TEXT) LANGUAGE plpgsql
{planner.ordered_indexes} AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_runs BIGINT[] := '{}';
    v_found BIGINT[];
    v_lost BIGINT[];
BEGIN
    IF p_is_retry THEN
        v_runs := ARRAY(SELECT o.run FROM {schema}.holdfast_outlet AS o
                         WHERE o.run_at > v_now AND (o.owner = p_owner) IS TRUE AND o.claimed_by = p_token);
    END IF;
    SELECT array_agg(f.run), array_agg(f.run) FILTER (WHERE f.owner IS NOT NULL) INTO v_found, v_lost
      FROM (SELECT o.run, o.owner FROM {schema}.holdfast_outlet AS o WHERE o.run_at <= v_now
             ORDER BY o.run_at, o.run LIMIT greatest(p_limit - cardinality(v_runs), 0) FOR UPDATE SKIP LOCKED) AS f;
    IF v_lost IS NOT NULL THEN  -- the lease of the previous owner expired
        UPDATE {schema}.holdfast_outbox AS b SET attempts = b.attempts + 1
          FROM {schema}.holdfast_outlet AS o WHERE o.run = ANY (v_lost) AND b.run = o.run AND b.n = o.n;
    END IF;
    UPDATE {schema}.holdfast_outlet AS o SET owner = p_owner, run_at = v_now + p_lease_ms, claimed_by = p_token
     WHERE o.run = ANY (v_found);
    RETURN QUERY
        SELECT NULL::bigint, b.run, b.n, r.workflow, r.instance_id, r.number, b.step, b.type, b.payload, b.created_at,
               b.attempts, b.run_at, b.error, b.delivered_at, b.parked_at, b.trace
          FROM unnest(v_runs || v_found) WITH ORDINALITY AS a (run, ord)
          JOIN {schema}.holdfast_outlet AS o ON o.run = a.run
          JOIN {schema}.holdfast_outbox AS b ON b.run = o.run AND b.n = o.n
          JOIN {schema}.holdfast_run AS r ON r.id = b.run
         ORDER BY a.ord;
    RETURN QUERY
        SELECT min(o.run_at), NULL::bigint, NULL::bigint, NULL::text, NULL::text, NULL::bigint, NULL::bytea,
               NULL::bytea, NULL::bytea, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bytea, NULL::bigint,
               NULL::bigint, NULL::text
          FROM {schema}.holdfast_outlet AS o;
END $$;

-- Record the outcomes of deliveries. p_error: NULL if delivered; p_run_at: when to retry, NULL to park the event.
-- Returns the number of events that p_owner still owned.
CREATE OR REPLACE FUNCTION {schema}.holdfast_outbox_settle(
    p_now BIGINT, p_owner TEXT, p_run BIGINT[], p_n BIGINT[], p_error BYTEA[], p_run_at BIGINT[]
) RETURNS BIGINT LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_outcome RECORD;
    v_count BIGINT := 0;
BEGIN
    FOR v_outcome IN
        SELECT a.run, a.n, a.error, a.run_at
          FROM unnest(p_run, p_n, p_error, p_run_at) WITH ORDINALITY AS a (run, n, error, run_at, ord)
         ORDER BY a.run, a.ord
    LOOP
        PERFORM FROM {schema}.holdfast_outlet AS o
          WHERE o.run = v_outcome.run AND o.n = v_outcome.n AND o.owner = p_owner FOR UPDATE;
        CONTINUE WHEN NOT FOUND;
        v_count := v_count + 1;
        UPDATE {schema}.holdfast_outbox AS b
           SET attempts = b.attempts + CASE WHEN v_outcome.error IS NULL THEN 0 ELSE 1 END,
               error = coalesce(v_outcome.error, b.error), run_at = coalesce(v_outcome.run_at, b.run_at),
               delivered_at = CASE WHEN v_outcome.error IS NULL THEN v_now END,
               parked_at = CASE WHEN v_outcome.error IS NOT NULL AND v_outcome.run_at IS NULL THEN v_now END
         WHERE b.run = v_outcome.run AND b.n = v_outcome.n;
        PERFORM {schema}.holdfast_outbox_next(v_outcome.run);
    END LOOP;
    RETURN v_count;
END $$;

-- Make the parked events of a run due again. An event that is being delivered stays first.
CREATE OR REPLACE FUNCTION {schema}.holdfast_outbox_retry(p_now BIGINT, p_store TEXT, p_run BIGINT) RETURNS BIGINT
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_owner TEXT;
    v_count BIGINT;
BEGIN
    IF NOT EXISTS (SELECT FROM {schema}.holdfast_outbox WHERE run = p_run AND parked_at IS NOT NULL) THEN
        RETURN 0;
    END IF;
    INSERT INTO {schema}.holdfast_outlet AS o (run, n, run_at) VALUES (p_run, 0, v_now)
    ON CONFLICT (run) DO UPDATE SET run_at = o.run_at
    RETURNING o.owner INTO v_owner;
    UPDATE {schema}.holdfast_outbox SET parked_at = NULL, attempts = 0, run_at = v_now
     WHERE run = p_run AND parked_at IS NOT NULL;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_owner IS NULL THEN
        PERFORM {schema}.holdfast_outbox_next(p_run);
    END IF;
    PERFORM pg_notify('{channel}', p_store);
    RETURN v_count;
END $$;

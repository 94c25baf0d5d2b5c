-- Sending events to the mailboxes of runs.

-- True if an event of this type wakes a run that waits for these topics. Engine events ("@...") always do.
CREATE OR REPLACE FUNCTION {schema}.holdfast_matches_topics(p_type TEXT, p_topics TEXT) RETURNS BOOLEAN
LANGUAGE sql IMMUTABLE AS $$
    SELECT p_type LIKE '@%' OR position(' ' || {ANY_TOPIC} || ' ' IN p_topics) > 0
        OR position(' ' || p_type || ' ' IN p_topics) > 0
$$;

-- Add an event to the mailbox of an unfinished run whose task is locked; p_to is its record, read under the lock.
-- Returns an AddedEvent.
CREATE OR REPLACE FUNCTION {schema}.holdfast_add_event(
    p_now BIGINT, p_to {schema}.holdfast_record, p_type TEXT, p_payload BYTEA, p_sender BYTEA, p_ask BYTEA,
    p_dedup BYTEA, p_token BIGINT, p_trace TEXT = NULL
) RETURNS INTEGER LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.holdfast_event (run, n, type, payload, created_at, sender, ask, dedup, sent_by, line, trace)
    VALUES (p_to.run, 1 + coalesce((SELECT max(n) FROM {schema}.holdfast_event WHERE run = p_to.run), 0),
            p_type, p_payload, p_now, p_sender, p_ask, p_dedup, p_token, p_to.line, p_trace)
    ON CONFLICT (line, dedup) WHERE dedup IS NOT NULL DO NOTHING;
    IF NOT FOUND THEN
        RETURN {AddedEvent.DUPLICATE};
    ELSIF p_to.owner IS NOT NULL THEN
        UPDATE {schema}.holdfast_task SET signal = signal | {Signal.EVENTS} WHERE run = p_to.run AND unit = 0;
        RETURN {AddedEvent.SIGNALLED};
    ELSIF p_to.status = {Status.PAUSED} OR NOT {schema}.holdfast_matches_topics(p_type, p_to.topics) THEN
        RETURN {AddedEvent.STORED};
    ELSIF p_to.run_at IS NULL OR p_to.run_at > p_now THEN
        UPDATE {schema}.holdfast_task SET run_at = p_now, kind = {TaskKind.WAKE}, bucket = {Bucket.CONTINUING}
         WHERE run = p_to.run AND unit = 0 AND held_at IS NULL;
        IF NOT FOUND THEN
            RETURN {AddedEvent.STORED};
        END IF;
    END IF;
    RETURN {AddedEvent.DUE};
END $$;

-- Add an engine event to the mailboxes of runs whose tasks are locked; ended runs are skipped. Returns the woken runs;
-- due is false for runs that have an owner, which is signalled instead.
CREATE OR REPLACE FUNCTION {schema}.holdfast_send_engine_events(
    p_now BIGINT, p_run BIGINT[], p_type TEXT, p_payload BYTEA[], p_sender BYTEA[]
) RETURNS TABLE (run BIGINT, due BOOLEAN) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO {schema}.holdfast_event (run, n, type, payload, created_at, sender)
    SELECT a.run, coalesce((SELECT max(n) FROM {schema}.holdfast_event WHERE run = a.run), 0)
               + row_number() OVER (PARTITION BY a.run ORDER BY a.ord), p_type, a.payload, p_now, a.sender
      FROM unnest(p_run, p_payload, p_sender) WITH ORDINALITY AS a (run, payload, sender, ord)
     WHERE (SELECT true FROM {schema}.holdfast_task AS t WHERE t.run = a.run AND t.unit = 0);
    RETURN QUERY
        UPDATE {schema}.holdfast_task AS t
           SET signal = CASE WHEN t.owner IS NULL THEN t.signal ELSE t.signal | {Signal.EVENTS} END,
               run_at = CASE WHEN t.owner IS NULL THEN least(t.run_at, p_now) ELSE t.run_at END,
               kind = CASE WHEN t.owner IS NULL AND t.run_at <= p_now IS NOT TRUE THEN {TaskKind.WAKE} ELSE t.kind END,
               bucket = CASE WHEN t.owner IS NULL AND t.run_at <= p_now IS NOT TRUE THEN {Bucket.CONTINUING}
                             ELSE t.bucket END
         WHERE t.run = ANY (p_run) AND t.unit = 0 AND t.held_at IS NULL
           AND (t.owner IS NOT NULL OR (SELECT status FROM {schema}.holdfast_run WHERE id = t.run) <> {Status.PAUSED})
        RETURNING t.run, t.owner IS NULL;
END $$;

-- Add an engine event to one mailbox; returns the affected runs.
CREATE OR REPLACE FUNCTION {schema}.holdfast_send_engine_event(
    p_now BIGINT, p_run BIGINT, p_type TEXT, p_payload BYTEA, p_sender BYTEA
) RETURNS {schema}.holdfast_affected LANGUAGE sql AS $$
    SELECT ROW(NULL, array_agg(p.run), coalesce(bool_or(p.due), false))::{schema}.holdfast_affected
      FROM {schema}.holdfast_send_engine_events(p_now, ARRAY[p_run], p_type, ARRAY[p_payload], ARRAY[p_sender]) AS p
$$;

-- Request the cancellation of an unfinished run whose task is locked. With p_deadline_ms the run expires that long from
-- now, or earlier. A graph has no code that could react, so it ends at once; p_reason, the payload's reason as text, is
-- written to its tombstone and error.
CREATE OR REPLACE FUNCTION {schema}.holdfast_request_cancel(
    p_now BIGINT, p_store TEXT, p_run BIGINT, p_payload BYTEA, p_reason BYTEA, p_deadline_ms BIGINT, p_sender BYTEA
) RETURNS {schema}.holdfast_affected LANGUAGE plpgsql AS $$
DECLARE
    v_affected {schema}.holdfast_affected;
BEGIN
    IF (SELECT kind FROM {schema}.holdfast_run WHERE id = p_run) = {GRAPH}
       OR EXISTS (SELECT FROM {schema}.holdfast_task WHERE run = p_run AND unit = 0 AND held_at IS NOT NULL) THEN
        PERFORM {schema}.holdfast_write_tombstone(p_now, p_run, p_reason);
        v_affected := {schema}.holdfast_end_run(
            p_now, p_store, p_run, {Status.CANCELLED}, NULL, {schema}.holdfast_cancelled_error(p_reason), NULL, NULL,
            false);
        v_affected.ended := p_run || v_affected.ended;
        RETURN v_affected;
    END IF;
    v_affected := {schema}.holdfast_send_engine_event(p_now, p_run, {CANCEL}, p_payload, p_sender);
    UPDATE {schema}.holdfast_task SET expires_at = p_now + p_deadline_ms, expiry = {Expiry.CANCEL}
     WHERE run = p_run AND unit = 0 AND p_deadline_ms IS NOT NULL AND expires_at <= p_now + p_deadline_ms IS NOT TRUE;
    -- work makes workers claim again: the new deadline may precede the next due time that they know.
    v_affected.work := coalesce(v_affected.work, false) OR p_deadline_ms IS NOT NULL;
    RETURN v_affected;
END $$;

-- Undelivered events of a run, oldest first: at most one more than a page, to show whether there are more.
CREATE OR REPLACE FUNCTION {schema}.holdfast_mailbox_page(p_run BIGINT, p_after BIGINT)
RETURNS TABLE (mailbox_n BIGINT[], mailbox_type TEXT[], mailbox_payload BYTEA[], mailbox_at BIGINT[],
               mailbox_sender BYTEA[], mailbox_ask BYTEA[], mailbox_trace TEXT[], mailbox_last BIGINT)
LANGUAGE sql STABLE AS $$
    SELECT array_agg(e.n), array_agg(e.type), array_agg(e.payload), array_agg(e.created_at), array_agg(e.sender),
           array_agg(e.ask), array_agg(e.trace), (SELECT max(n) FROM {schema}.holdfast_event WHERE run = p_run)
      FROM (SELECT * FROM {schema}.holdfast_event
             WHERE run = p_run AND n > p_after AND delivered_at IS NULL ORDER BY n LIMIT {PAGE_SIZE} + 1) AS e
$$;

-- Send a batch of events. p_dedup has a key for each event: the sender's, or one made for this call. p_owner,
-- p_lease_ms and p_queues describe the claimant, which claims the run if the event wakes it (p_queues: queue names,
-- each between two newlines; p_version: its version). p_is_retry: an earlier attempt of this call may have been committed.
CREATE OR REPLACE FUNCTION {schema}.holdfast_send(
    p_now BIGINT, p_store TEXT, {send.parameters}, p_suspect_losses INTEGER, p_is_retry BOOLEAN
) RETURNS TABLE (ord BIGINT, accepted BOOLEAN, duplicate BOOLEAN, woken BOOLEAN, epoch BIGINT, kind INTEGER,
                 lost BOOLEAN, now BIGINT, mailbox_n BIGINT[], mailbox_type TEXT[], mailbox_payload BYTEA[],
                 mailbox_at BIGINT[], mailbox_sender BYTEA[], mailbox_ask BYTEA[], mailbox_trace TEXT[],
                 mailbox_last BIGINT, r {schema}.holdfast_record)
LANGUAGE plpgsql
{planner.nested_loops} AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT;
    v_record {schema}.holdfast_record;
    v_effect INTEGER;
    v_notify BOOLEAN := false;
    v_task {schema}.holdfast_task;
    v_event RECORD;
BEGIN
    IF cardinality(p_workflow) > 1 THEN
        PERFORM 1 FROM {schema}.holdfast_task AS t
          WHERE t.run = ANY (ARRAY(SELECT {schema}.holdfast_current_run(a.workflow, a.instance_id)
                                     FROM unnest(p_workflow, p_instance_id) AS a (workflow, instance_id)))
            AND t.unit = 0
          ORDER BY t.run FOR NO KEY UPDATE;
    END IF;
    FOR v_event IN
        SELECT * FROM {send.events.numbered_rows}
    LOOP
        v_run := {schema}.holdfast_lock_current_run(v_event.workflow, v_event.instance_id);
        v_record := NULL;
        v_task := NULL;
        IF v_run IS NOT NULL THEN
            SELECT * INTO v_record FROM {schema}.holdfast_record WHERE run = v_run;
        END IF;
        IF v_record.epoch IS NOT NULL THEN  -- it has a task, so the run has not ended
            v_effect := {schema}.holdfast_add_event(v_now, v_record, v_event.type, v_event.payload, v_event.sender,
                                                    v_event.ask, v_event.dedup, v_event.token, v_event.trace);
            IF v_effect = {AddedEvent.DUPLICATE} AND EXISTS (SELECT FROM {schema}.holdfast_event
                                         WHERE line = v_record.line AND dedup = v_event.dedup
                                           AND sent_by = v_event.token) THEN
                v_effect := {AddedEvent.SIGNALLED};  -- an earlier attempt of this call sent it
                SELECT * INTO v_task FROM {schema}.holdfast_task AS t
                 WHERE t.run = v_run AND t.unit = 0 AND (t.owner = v_event.owner) IS TRUE
                   AND t.claimed_by = v_event.token;
            ELSIF v_effect = {AddedEvent.DUE} THEN
                v_task := {schema}.holdfast_claim_woken(v_now, v_run, v_event.token, v_event.owner, v_event.lease_ms,
                                                        v_event.queues, v_event.version, p_suspect_losses);
            END IF;
            v_notify := v_notify OR (v_effect >= {AddedEvent.SIGNALLED} AND v_task.run IS NULL);
            RETURN QUERY
                SELECT v_event.ord, true, v_effect = {AddedEvent.DUPLICATE}, v_effect >= {AddedEvent.SIGNALLED},
                       v_task.epoch, v_task.kind, v_task.lost, v_now, m.*, v_record
                  FROM (SELECT) AS x LEFT JOIN LATERAL {schema}.holdfast_mailbox_page(v_task.run, 0) AS m
                       ON v_task.run IS NOT NULL;
        ELSE
            RETURN QUERY SELECT v_event.ord, p_is_retry AND EXISTS (
                SELECT FROM {schema}.holdfast_run AS b
                  JOIN {schema}.holdfast_event AS e ON e.line = coalesce(b.line, b.id) AND e.dedup = v_event.dedup
                 WHERE b.workflow = v_event.workflow AND b.instance_id = v_event.instance_id
                   AND e.sent_by = v_event.token
            ), false, false, NULL::bigint, NULL::int, NULL::boolean, v_now, NULL::bigint[], NULL::text[], NULL::bytea[],
            NULL::bigint[], NULL::bytea[], NULL::bytea[], NULL::text[], NULL::bigint, v_record;
        END IF;
    END LOOP;
    IF v_notify THEN
        PERFORM pg_notify('{channel}', p_store);
    END IF;
END $$;

-- Send one event to an unfinished run: the most common call, in half the time of holdfast_send. Returns NULLs, and
-- writes nothing, if the call needs the general function: there is no such run, it has ended, or the dedup key exists.
-- t is the task before the call. p_at is the time that the sender predicted for the event (Prediction); it is used if
-- it differs from now by at most MAX_CLOCK_SKEW_MS and the run is not due.
CREATE OR REPLACE FUNCTION {schema}.holdfast_send_one(
    p_now BIGINT, p_store TEXT, {send_one.parameters},
    p_suspect_losses INTEGER, p_at BIGINT, OUT woken BOOLEAN, OUT epoch BIGINT,
    OUT kind INTEGER, OUT lost BOOLEAN, OUT now BIGINT, OUT mailbox_n BIGINT[], OUT mailbox_type TEXT[],
    OUT mailbox_payload BYTEA[], OUT mailbox_at BIGINT[], OUT mailbox_sender BYTEA[], OUT mailbox_ask BYTEA[],
    OUT mailbox_trace TEXT[], OUT mailbox_last BIGINT, OUT r {schema}.holdfast_run, OUT t {schema}.holdfast_task
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    v_due BOOLEAN;
    v_at BIGINT;
BEGIN
    now := {schema}.holdfast_begin(p_now);
    SELECT * INTO t FROM {schema}.holdfast_task AS x
     WHERE x.run = (SELECT id FROM {schema}.holdfast_run
                     WHERE workflow = p_workflow AND instance_id = p_instance_id ORDER BY number DESC LIMIT 1)
       AND x.unit = 0
       FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT * INTO r FROM {schema}.holdfast_run WHERE id = t.run;
    v_due := t.run_at <= now;
    v_at := CASE WHEN v_due IS NOT TRUE AND abs(p_at - now) <= {MAX_CLOCK_SKEW_MS} THEN p_at ELSE now END;
    INSERT INTO {schema}.holdfast_event (run, n, type, payload, created_at, sender, ask, dedup, sent_by, line, trace)
    VALUES (t.run, 1 + coalesce((SELECT max(n) FROM {schema}.holdfast_event WHERE run = t.run), 0), p_type, p_payload,
            v_at, p_sender, p_ask, p_dedup, p_token, coalesce(r.line, r.id), p_trace)
    ON CONFLICT (line, dedup) WHERE dedup IS NOT NULL DO NOTHING
    RETURNING n INTO mailbox_last;
    IF NOT FOUND THEN
        r := NULL;
        RETURN;
    END IF;
    woken := t.owner IS NOT NULL
             OR (r.status <> {Status.PAUSED} AND {schema}.holdfast_matches_topics(p_type, t.topics));
    IF t.owner IS NOT NULL THEN
        UPDATE {schema}.holdfast_task AS x SET signal = x.signal | {Signal.EVENTS} WHERE x.run = t.run AND x.unit = 0;
    ELSIF woken AND p_owner IS NOT NULL AND t.losses < p_suspect_losses
          AND position(E'\n' || t.queue || E'\n' IN p_queues) > 0 AND (t.pin = '' OR t.pin = p_version)
          AND NOT EXISTS (SELECT FROM {schema}.holdfast_queue AS q WHERE q.name = t.queue AND q.paused) THEN
        epoch := t.epoch + 1;
        kind := CASE WHEN v_due THEN t.kind ELSE {TaskKind.WAKE} END;
        lost := t.lost;
        UPDATE {schema}.holdfast_task AS x
           SET owner = p_owner, lease_until = now + p_lease_ms, lease_ms = NULL, lost = false,
               epoch = holdfast_send_one.epoch, claimed_by = p_token, kind = holdfast_send_one.kind,
               run_at = CASE WHEN v_due THEN x.run_at ELSE now END,
               bucket = CASE WHEN v_due THEN x.bucket ELSE {Bucket.CONTINUING} END
         WHERE x.run = t.run AND x.unit = 0;
        IF r.status = {Status.WAITING} THEN
            UPDATE {schema}.holdfast_run SET status = {Status.ACTIVE}, updated_at = now WHERE id = t.run;
        END IF;
        IF mailbox_last = 1 THEN  -- the mailbox was empty
            mailbox_n := ARRAY[mailbox_last];
            mailbox_type := ARRAY[p_type];
            mailbox_payload := ARRAY[p_payload];
            mailbox_at := ARRAY[v_at];
            mailbox_sender := ARRAY[p_sender];
            mailbox_ask := ARRAY[p_ask];
            mailbox_trace := ARRAY[p_trace];
        ELSE
            SELECT * INTO mailbox_n, mailbox_type, mailbox_payload, mailbox_at, mailbox_sender, mailbox_ask,
                          mailbox_trace, mailbox_last
              FROM {schema}.holdfast_mailbox_page(t.run, 0);
        END IF;
        RETURN;
    ELSIF woken AND v_due IS NOT TRUE THEN
        UPDATE {schema}.holdfast_task AS x SET run_at = now, kind = {TaskKind.WAKE}, bucket = {Bucket.CONTINUING}
         WHERE x.run = t.run AND x.unit = 0;
    END IF;
    IF woken THEN
        PERFORM pg_notify('{channel}', p_store);
    END IF;
END $$;

-- Claim a due run for p_owner, unless the run is a suspect, in another queue or pinned to another version. Returns the claimed task, except that
-- lost has the value from before the claim: true if the previous owner lost the task.
CREATE OR REPLACE FUNCTION {schema}.holdfast_claim_woken(
    p_now BIGINT, p_run BIGINT, p_token BIGINT, p_owner TEXT, p_lease_ms BIGINT, p_queues TEXT,
    p_version TEXT, p_suspect_losses INTEGER
) RETURNS {schema}.holdfast_task LANGUAGE plpgsql AS $$
DECLARE
    v_task {schema}.holdfast_task;
BEGIN
    IF p_owner IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT * INTO v_task FROM {schema}.holdfast_task
     WHERE run = p_run AND unit = 0 AND losses < p_suspect_losses AND position(E'\n' || queue || E'\n' IN p_queues) > 0
       AND (pin = '' OR pin = p_version)
       AND NOT EXISTS (SELECT FROM {schema}.holdfast_queue AS q WHERE q.name = queue AND q.paused);
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    UPDATE {schema}.holdfast_task
       SET owner = p_owner, lease_until = p_now + p_lease_ms, lease_ms = NULL, lost = false, epoch = epoch + 1,
           claimed_by = p_token
     WHERE run = p_run AND unit = 0;
    UPDATE {schema}.holdfast_run SET status = {Status.ACTIVE}, updated_at = p_now
     WHERE id = p_run AND status = {Status.WAITING};
    v_task.epoch := v_task.epoch + 1;
    RETURN v_task;
END $$;

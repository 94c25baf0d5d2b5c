-- Events into mailboxes.

-- Whether an event of this type wakes a run that waits for these topics. The engine's own always does.
CREATE FUNCTION {schema}.holdfast_wanted(p_type TEXT, p_topics TEXT) RETURNS BOOLEAN LANGUAGE sql IMMUTABLE AS $$
    SELECT p_type LIKE '@%' OR position(' * ' IN p_topics) > 0 OR position(' ' || p_type || ' ' IN p_topics) > 0
$$;

-- Puts an event into the mailbox of a run that lives and whose task is locked; p_to is how it was then. What came of
-- it: 0 it was there before, 1 it is kept and nobody waits for it, 2 who holds the run is told, 3 the run is due.
CREATE FUNCTION {schema}.holdfast_put(
    p_now BIGINT, p_to {schema}.holdfast_record, p_type TEXT, p_payload BYTEA, p_sender BYTEA, p_ask BYTEA,
    p_dedup BYTEA, p_token BIGINT
) RETURNS INTEGER LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.holdfast_event (run, n, type, payload, created_at, sender, ask, dedup, sent_by, line)
    VALUES (p_to.run, 1 + coalesce((SELECT max(n) FROM {schema}.holdfast_event WHERE run = p_to.run), 0),
            p_type, p_payload, p_now, p_sender, p_ask, p_dedup, p_token, p_to.line)
    ON CONFLICT (line, dedup) WHERE dedup IS NOT NULL DO NOTHING;
    IF NOT FOUND THEN
        RETURN 0;
    ELSIF p_to.owner IS NOT NULL THEN
        UPDATE {schema}.holdfast_task SET signal = signal | 1 WHERE run = p_to.run AND unit = 0;
        RETURN 2;
    ELSIF p_to.status = 'paused' OR NOT {schema}.holdfast_wanted(p_type, p_to.topics) THEN
        RETURN 1;
    ELSIF p_to.run_at IS NULL OR p_to.run_at > p_now THEN
        UPDATE {schema}.holdfast_task SET run_at = p_now, kind = 0, bucket = 0 WHERE run = p_to.run AND unit = 0;
    END IF;
    RETURN 3;
END $$;

-- The engine's own mail: to those of the runs that live, whose tasks are locked. Answers who was woken, and whether it
-- is due by that.
CREATE FUNCTION {schema}.holdfast_post(
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
           SET signal = CASE WHEN t.owner IS NULL THEN t.signal ELSE t.signal | 1 END,
               run_at = CASE WHEN t.owner IS NULL THEN least(t.run_at, p_now) ELSE t.run_at END,
               kind = CASE WHEN t.owner IS NULL AND t.run_at <= p_now IS NOT TRUE THEN 0 ELSE t.kind END,
               bucket = CASE WHEN t.owner IS NULL AND t.run_at <= p_now IS NOT TRUE THEN 0 ELSE t.bucket END
         WHERE t.run = ANY (p_run) AND t.unit = 0
           AND (t.owner IS NOT NULL OR (SELECT status FROM {schema}.holdfast_run WHERE id = t.run) <> 'paused')
        RETURNING t.run, t.owner IS NULL;
END $$;

-- The same to one, and what that has changed.
CREATE FUNCTION {schema}.holdfast_post_one(
    p_now BIGINT, p_run BIGINT, p_type TEXT, p_payload BYTEA, p_sender BYTEA
) RETURNS {schema}.holdfast_touched LANGUAGE sql AS $$
    SELECT ROW(NULL, array_agg(p.run), coalesce(bool_or(p.due), false))::{schema}.holdfast_touched
      FROM {schema}.holdfast_post(p_now, ARRAY[p_run], p_type, ARRAY[p_payload], ARRAY[p_sender]) AS p
$$;

-- Asks a run that lives, and whose task is locked, to cancel. p_deadline_ms: it expires then at the latest, from now.
-- A graph has no code that could react, and ends at once; p_reason, the text of the payload's reason, is for it.
CREATE FUNCTION {schema}.holdfast_ask_to_cancel(
    p_now BIGINT, p_by TEXT, p_run BIGINT, p_payload BYTEA, p_reason BYTEA, p_deadline_ms BIGINT, p_sender BYTEA
) RETURNS {schema}.holdfast_touched LANGUAGE plpgsql AS $$
DECLARE
    v_touched {schema}.holdfast_touched;
BEGIN
    IF (SELECT kind FROM {schema}.holdfast_run WHERE id = p_run) = 'graph' THEN
        PERFORM {schema}.holdfast_bury(p_now, p_run, p_reason);
        v_touched := {schema}.holdfast_end(
            p_now, p_by, p_run, 'cancelled', NULL, {schema}.holdfast_cancelled(p_reason), NULL, NULL, false);
        v_touched.ended := p_run || v_touched.ended;
        RETURN v_touched;
    END IF;
    v_touched := {schema}.holdfast_post_one(p_now, p_run, '@cancel', p_payload, p_sender);
    UPDATE {schema}.holdfast_task SET expires_at = p_now + p_deadline_ms, expiry = 'cancel'
     WHERE run = p_run AND unit = 0 AND p_deadline_ms IS NOT NULL AND expires_at <= p_now + p_deadline_ms IS NOT TRUE;
    -- Somebody has to end it then: claims are to ask for the next due time again.
    v_touched.work := coalesce(v_touched.work, false) OR p_deadline_ms IS NOT NULL;
    RETURN v_touched;
END $$;

-- Undelivered events of a run, the oldest first: one more than are handed out at once (500), if there are more.
CREATE FUNCTION {schema}.holdfast_mailbag(p_run BIGINT, p_after BIGINT)
RETURNS TABLE (mail_n BIGINT[], mail_type TEXT[], mail_payload BYTEA[], mail_at BIGINT[], mail_sender BYTEA[],
               mail_ask BYTEA[], mail_last BIGINT)
LANGUAGE sql STABLE AS $$
    SELECT array_agg(e.n), array_agg(e.type), array_agg(e.payload), array_agg(e.created_at), array_agg(e.sender),
           array_agg(e.ask), (SELECT max(n) FROM {schema}.holdfast_event WHERE run = p_run)
      FROM (SELECT * FROM {schema}.holdfast_event
             WHERE run = p_run AND n > p_after AND delivered_at IS NULL ORDER BY n LIMIT 501) AS e
$$;

-- p_dedup has a key for each: the sender's own, or one made for this call. p_owner and what goes with it: who takes the
-- run if the event wakes it (p_queues: their names, each between two line ends). p_again: an earlier try of this call
-- may have been done.
CREATE FUNCTION {schema}.holdfast_send(
    p_now BIGINT, p_by TEXT, p_workflow TEXT[], p_instance_id TEXT[], p_type TEXT[], p_payload BYTEA[],
    p_sender BYTEA[], p_dedup BYTEA[], p_token BIGINT[], p_ask BYTEA[], p_owner TEXT[], p_lease_ms BIGINT[],
    p_queues TEXT[], p_suspect INTEGER, p_again BOOLEAN
) RETURNS TABLE (ord BIGINT, accepted BOOLEAN, duplicate BOOLEAN, woken BOOLEAN, epoch BIGINT, kind INTEGER,
                 lost BOOLEAN, now BIGINT, mail_n BIGINT[], mail_type TEXT[], mail_payload BYTEA[], mail_at BIGINT[],
                 mail_sender BYTEA[], mail_ask BYTEA[], mail_last BIGINT, r {schema}.holdfast_record)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now BIGINT := {schema}.holdfast_begin(p_now);
    v_run BIGINT;
    v_rec {schema}.holdfast_record;
    v_effect INTEGER;
    v_told BOOLEAN := false;
    v_task {schema}.holdfast_task;
    v_one RECORD;
BEGIN
    IF cardinality(p_workflow) > 1 THEN
        PERFORM 1 FROM {schema}.holdfast_task AS t
          WHERE t.run = ANY (ARRAY(SELECT {schema}.holdfast_current(a.workflow, a.instance_id)
                                     FROM unnest(p_workflow, p_instance_id) AS a (workflow, instance_id)))
            AND t.unit = 0
          ORDER BY t.run FOR NO KEY UPDATE;
    END IF;
    FOR v_one IN
        SELECT * FROM unnest(p_workflow, p_instance_id, p_type, p_payload, p_sender, p_dedup, p_token, p_ask, p_owner,
                             p_lease_ms, p_queues)
            WITH ORDINALITY AS a (workflow, instance_id, type, payload, sender, dedup, token, ask, owner, lease_ms,
                                  queues, ord)
    LOOP
        v_run := {schema}.holdfast_lock(v_one.workflow, v_one.instance_id);
        v_rec := NULL;
        v_task := NULL;
        IF v_run IS NOT NULL THEN
            SELECT * INTO v_rec FROM {schema}.holdfast_record WHERE run = v_run;
        END IF;
        IF v_rec.epoch IS NOT NULL THEN  -- it has a task, so it has not ended
            v_effect := {schema}.holdfast_put(v_now, v_rec, v_one.type, v_one.payload, v_one.sender, v_one.ask,
                                              v_one.dedup, v_one.token);
            IF v_effect = 0 AND EXISTS (SELECT FROM {schema}.holdfast_event
                                         WHERE line = v_rec.line AND dedup = v_one.dedup AND sent_by = v_one.token) THEN
                v_effect := 2;  -- this very call has been here before
                SELECT * INTO v_task FROM {schema}.holdfast_task AS t
                 WHERE t.run = v_run AND t.unit = 0 AND (t.owner = v_one.owner) IS TRUE AND t.claimed_by = v_one.token;
            ELSIF v_effect = 3 THEN
                v_task := {schema}.holdfast_take_awoken(v_now, v_run, v_one.token, v_one.owner, v_one.lease_ms,
                                                        v_one.queues, p_suspect);
            END IF;
            v_told := v_told OR (v_effect > 1 AND v_task.run IS NULL);
            RETURN QUERY
                SELECT v_one.ord, true, v_effect = 0, v_effect > 1, v_task.epoch, v_task.kind, v_task.lost, v_now, m.*,
                       v_rec
                  FROM (SELECT) AS x LEFT JOIN LATERAL {schema}.holdfast_mailbag(v_task.run, 0) AS m
                       ON v_task.run IS NOT NULL;
        ELSE
            RETURN QUERY SELECT v_one.ord, p_again AND EXISTS (
                SELECT FROM {schema}.holdfast_run AS b
                  JOIN {schema}.holdfast_event AS e ON e.line = coalesce(b.line, b.id) AND e.dedup = v_one.dedup
                 WHERE b.workflow = v_one.workflow AND b.instance_id = v_one.instance_id AND e.sent_by = v_one.token
            ), false, false, NULL::bigint, NULL::int, NULL::boolean, v_now, NULL::bigint[], NULL::text[], NULL::bytea[],
            NULL::bigint[], NULL::bytea[], NULL::bytea[], NULL::bigint, v_rec;
        END IF;
    END LOOP;
    IF v_told THEN
        PERFORM pg_notify('{channel}', p_by);
    END IF;
END $$;

-- The same for one event to a run that lives, which is what most calls are, in half the time. NULL if there is more to
-- it: no such run, one that has ended, an event that was there before. t is the task as it was then. p_at: the time that
-- the sender expects the event to have (Foreseen); it is believed if that is about now (ABOUT_NOW_MS) and nothing is due.
CREATE FUNCTION {schema}.holdfast_send_one(
    p_now BIGINT, p_by TEXT, p_workflow TEXT, p_instance_id TEXT, p_type TEXT, p_payload BYTEA, p_sender BYTEA,
    p_dedup BYTEA, p_token BIGINT, p_ask BYTEA, p_owner TEXT, p_lease_ms BIGINT, p_queues TEXT, p_suspect INTEGER,
    p_quiet BOOLEAN, p_at BIGINT, OUT woken BOOLEAN, OUT epoch BIGINT, OUT kind INTEGER, OUT lost BOOLEAN, OUT now BIGINT,
    OUT mail_n BIGINT[], OUT mail_type TEXT[], OUT mail_payload BYTEA[], OUT mail_at BIGINT[],
    OUT mail_sender BYTEA[], OUT mail_ask BYTEA[], OUT mail_last BIGINT, OUT r {schema}.holdfast_run,
    OUT t {schema}.holdfast_task
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
    v_at := CASE WHEN v_due IS NOT TRUE AND abs(p_at - now) <= 200 THEN p_at ELSE now END;
    INSERT INTO {schema}.holdfast_event (run, n, type, payload, created_at, sender, ask, dedup, sent_by, line)
    VALUES (t.run, 1 + coalesce((SELECT max(n) FROM {schema}.holdfast_event WHERE run = t.run), 0), p_type, p_payload,
            v_at, p_sender, p_ask, p_dedup, p_token, coalesce(r.line, r.id))
    ON CONFLICT (line, dedup) WHERE dedup IS NOT NULL DO NOTHING
    RETURNING n INTO mail_last;
    IF NOT FOUND THEN
        r := NULL;
        RETURN;
    END IF;
    woken := t.owner IS NOT NULL OR (r.status <> 'paused' AND {schema}.holdfast_wanted(p_type, t.topics));
    IF t.owner IS NOT NULL THEN
        UPDATE {schema}.holdfast_task AS x SET signal = x.signal | 1 WHERE x.run = t.run AND x.unit = 0;
    ELSIF woken AND p_owner IS NOT NULL AND t.losses < p_suspect
          AND position(E'\n' || t.queue || E'\n' IN p_queues) > 0 THEN
        epoch := t.epoch + 1;
        kind := CASE WHEN v_due THEN t.kind ELSE 0 END;
        lost := t.lost;
        UPDATE {schema}.holdfast_task AS x
           SET owner = p_owner, lease_until = now + p_lease_ms, lease_ms = NULL, lost = false,
               epoch = holdfast_send_one.epoch, claimed_by = p_token, kind = holdfast_send_one.kind, run_at = CASE WHEN v_due THEN x.run_at ELSE now END,
               bucket = CASE WHEN v_due THEN x.bucket ELSE 0 END
         WHERE x.run = t.run AND x.unit = 0;
        IF r.status = 'waiting' THEN
            UPDATE {schema}.holdfast_run SET status = 'active', updated_at = now WHERE id = t.run;
        END IF;
        IF mail_last = 1 THEN  -- there is nothing else in its mailbox
            mail_n := ARRAY[mail_last];
            mail_type := ARRAY[p_type];
            mail_payload := ARRAY[p_payload];
            mail_at := ARRAY[v_at];
            mail_sender := ARRAY[p_sender];
            mail_ask := ARRAY[p_ask];
        ELSE
            SELECT * INTO mail_n, mail_type, mail_payload, mail_at, mail_sender, mail_ask, mail_last
              FROM {schema}.holdfast_mailbag(t.run, 0);
        END IF;
        RETURN;
    ELSIF woken AND v_due IS NOT TRUE THEN
        UPDATE {schema}.holdfast_task AS x SET run_at = now, kind = 0, bucket = 0 WHERE x.run = t.run AND x.unit = 0;
    END IF;
    IF woken AND NOT p_quiet THEN
        PERFORM pg_notify('{channel}', p_by);
    END IF;
END $$;

-- Gives a run that is due to who wanted it, unless it is a suspect or not of the wanted queues. Answers its task, as it
-- is then, but for lost: whether the holder before did not give it back.
CREATE FUNCTION {schema}.holdfast_take_awoken(
    p_now BIGINT, p_run BIGINT, p_token BIGINT, p_owner TEXT, p_lease_ms BIGINT, p_queues TEXT,
    p_suspect INTEGER
) RETURNS {schema}.holdfast_task LANGUAGE plpgsql AS $$
DECLARE
    v_task {schema}.holdfast_task;
BEGIN
    IF p_owner IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT * INTO v_task FROM {schema}.holdfast_task
     WHERE run = p_run AND unit = 0 AND losses < p_suspect AND position(E'\n' || queue || E'\n' IN p_queues) > 0;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    UPDATE {schema}.holdfast_task
       SET owner = p_owner, lease_until = p_now + p_lease_ms, lease_ms = NULL, lost = false, epoch = epoch + 1,
           claimed_by = p_token
     WHERE run = p_run AND unit = 0;
    UPDATE {schema}.holdfast_run SET status = 'active', updated_at = p_now WHERE id = p_run AND status = 'waiting';
    v_task.epoch := v_task.epoch + 1;
    RETURN v_task;
END $$;

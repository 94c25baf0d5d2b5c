-- Statistics, and the tallies of runs that ended.

-- Move the watermark: count a part of the runs that ended and of the instances that were started since, at most about
-- p_limit of each workflow and status. Counts by minute that are older than a day are added up by hour.
-- True if there is more to count.
CREATE OR REPLACE FUNCTION {schema}.holdfast_count_ended(p_now BIGINT, p_margin BIGINT, p_pause BIGINT, p_limit BIGINT)
RETURNS BOOLEAN LANGUAGE plpgsql AS $$
DECLARE
    v_now   BIGINT := {schema}.holdfast_begin(p_now);
    v_old   BIGINT := v_now - 604800000;
    v_hour  BIGINT := (v_now / 60000 - 1440) / 60 * 60;
    v_mark  BIGINT;
    v_end   BIGINT;
    v_part  BIGINT;
BEGIN
    INSERT INTO {schema}.holdfast_tally VALUES (-1, '', '', 0) ON CONFLICT DO NOTHING;
    SELECT count INTO v_mark FROM {schema}.holdfast_tally WHERE minute = -1 FOR UPDATE;
    v_end := v_now - p_margin;
    IF v_end - v_mark < p_pause THEN
        RETURN false;
    END IF;
    SELECT least(
        min((SELECT r.completed_at FROM {schema}.holdfast_run AS r
              WHERE r.completed_at IS NOT NULL AND r.workflow = w.name AND r.status = e.status
                AND r.completed_at > v_mark AND r.completed_at <= v_end
              ORDER BY r.completed_at LIMIT 1 OFFSET p_limit)),
        (SELECT min((SELECT r.created_at FROM {schema}.holdfast_run AS r
                      WHERE r.current AND r.workflow = s.name
                        AND r.created_at > greatest(v_mark, v_old) AND r.created_at <= v_end
                      ORDER BY r.created_at LIMIT 1 OFFSET p_limit))
           FROM unnest({schema}.holdfast_workflows()) AS s (name)))
      INTO v_part
      FROM unnest({schema}.holdfast_workflows()) AS w (name)
     CROSS JOIN unnest(ARRAY[{Status.COMPLETE}, {Status.ERRORED}, {Status.TERMINATED}, {Status.CANCELLED}]) AS e (status);
    v_end := coalesce(v_part, v_end);
    INSERT INTO {schema}.holdfast_tally AS t (minute, workflow, status, count)
    SELECT m.minute, w.name, e.status, m.count
      FROM unnest({schema}.holdfast_workflows()) AS w (name)
     CROSS JOIN unnest(ARRAY[{Status.COMPLETE}, {Status.ERRORED}, {Status.TERMINATED}, {Status.CANCELLED}]) AS e (status)
     CROSS JOIN LATERAL (
        SELECT CASE WHEN grouping(p.minute) = 1 THEN 0 ELSE p.minute END AS minute, count(*) AS count
          FROM (SELECT CASE WHEN r.completed_at > v_old THEN r.completed_at / 60000 ELSE 1 END AS minute
                  FROM {schema}.holdfast_run AS r
                 WHERE r.completed_at IS NOT NULL AND r.workflow = w.name AND r.status = e.status
                   AND r.completed_at > v_mark AND r.completed_at <= v_end) AS p
         GROUP BY GROUPING SETS ((), (p.minute))) AS m
     WHERE m.count > 0
    ON CONFLICT (minute, workflow, status) DO UPDATE SET count = t.count + excluded.count;
    INSERT INTO {schema}.holdfast_tally AS t (minute, workflow, status, count)
    SELECT s.minute, w.name, 'started', s.count
      FROM unnest({schema}.holdfast_workflows()) AS w (name)
     CROSS JOIN LATERAL (
        SELECT r.created_at / 60000 AS minute, count(*) AS count FROM {schema}.holdfast_run AS r
         WHERE r.current AND r.workflow = w.name
           AND r.created_at > greatest(v_mark, v_old) AND r.created_at <= v_end
         GROUP BY 1) AS s
    ON CONFLICT (minute, workflow, status) DO UPDATE SET count = t.count + excluded.count;
    UPDATE {schema}.holdfast_tally SET count = v_end WHERE minute = -1;
    IF EXISTS (SELECT FROM {schema}.holdfast_tally WHERE minute > v_hour - 60 AND minute < v_hour) THEN
        WITH added AS (
            DELETE FROM {schema}.holdfast_tally
             WHERE minute BETWEEN 1 AND v_hour - 1 AND minute % 60 <> 0 RETURNING minute, workflow, status, count)
        INSERT INTO {schema}.holdfast_tally AS t (minute, workflow, status, count)
        SELECT minute / 60 * 60, workflow, status, sum(count) FROM added GROUP BY 1, 2, 3
        ON CONFLICT (minute, workflow, status) DO UPDATE SET count = t.count + excluded.count;
    END IF;
    DELETE FROM {schema}.holdfast_tally WHERE minute BETWEEN 1 AND v_old / 60000;
    RETURN v_part IS NOT NULL;
END $$;

-- Runs that ended up to the watermark and are deleted, imported, or run again. Deletions are counted by statement,
-- because retention deletes many runs at once and a row of the tallies would get a new version for each.
CREATE OR REPLACE FUNCTION {schema}.holdfast_tally_deleted() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.holdfast_tally AS t SET count = t.count - g.count
      FROM (SELECT d.workflow, d.status, count(*) AS count FROM deleted AS d
             WHERE d.completed_at <= (SELECT m.count FROM {schema}.holdfast_tally AS m WHERE m.minute = -1)
             GROUP BY d.workflow, d.status) AS g
     WHERE t.minute = 0 AND t.workflow = g.workflow AND t.status = g.status;
    UPDATE {schema}.holdfast_tally AS t SET count = t.count - g.count
      FROM (SELECT d.workflow, d.status, count(*) AS count FROM deleted AS d
             WHERE d.retried GROUP BY d.workflow, d.status) AS g
     WHERE t.minute = -2 AND t.workflow = g.workflow AND t.status = g.status;
    RETURN NULL;
END $$;

-- Runs that are retried, or imported after they were.
CREATE OR REPLACE FUNCTION {schema}.holdfast_tally_retried() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.holdfast_tally AS t VALUES (-2, NEW.workflow, NEW.status, 1)
    ON CONFLICT (minute, workflow, status) DO UPDATE SET count = t.count + 1;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION {schema}.holdfast_tally_changed() RETURNS TRIGGER LANGUAGE plpgsql AS $$
DECLARE
    v_mark BIGINT;
BEGIN
    SELECT m.count INTO v_mark FROM {schema}.holdfast_tally AS m WHERE m.minute = -1;
    IF TG_OP = 'UPDATE' AND OLD.completed_at <= v_mark THEN
        UPDATE {schema}.holdfast_tally SET count = count - 1
         WHERE minute = 0 AND workflow = OLD.workflow AND status = OLD.status;
    ELSIF TG_OP = 'INSERT' AND NEW.completed_at <= v_mark THEN
        INSERT INTO {schema}.holdfast_tally AS t VALUES (0, NEW.workflow, NEW.status, 1)
        ON CONFLICT (minute, workflow, status) DO UPDATE SET count = t.count + 1;
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER holdfast_tally_delete AFTER DELETE ON {schema}.holdfast_run
    REFERENCING OLD TABLE AS deleted FOR EACH STATEMENT EXECUTE FUNCTION {schema}.holdfast_tally_deleted();
CREATE OR REPLACE TRIGGER holdfast_tally_update AFTER UPDATE OF completed_at ON {schema}.holdfast_run
    FOR EACH ROW WHEN (OLD.completed_at IS NOT NULL) EXECUTE FUNCTION {schema}.holdfast_tally_changed();
CREATE OR REPLACE TRIGGER holdfast_tally_insert AFTER INSERT ON {schema}.holdfast_run
    FOR EACH ROW WHEN (NEW.completed_at IS NOT NULL) EXECUTE FUNCTION {schema}.holdfast_tally_changed();
CREATE OR REPLACE TRIGGER holdfast_tally_retry AFTER UPDATE OF retried ON {schema}.holdfast_run
    FOR EACH ROW WHEN (NEW.retried AND NOT OLD.retried) EXECUTE FUNCTION {schema}.holdfast_tally_retried();
CREATE OR REPLACE TRIGGER holdfast_tally_insert_retried AFTER INSERT ON {schema}.holdfast_run
    FOR EACH ROW WHEN (NEW.retried) EXECUTE FUNCTION {schema}.holdfast_tally_retried();

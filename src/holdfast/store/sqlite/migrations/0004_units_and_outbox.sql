-- Units: tasks of one run besides its own (unit 0), that wait for each other.
ALTER TABLE holdfast_task ADD COLUMN missing INTEGER NOT NULL DEFAULT 0;  -- so many others have to be done before
ALTER TABLE holdfast_task ADD COLUMN key ANY;                             -- of its START facts
ALTER TABLE holdfast_task ADD COLUMN started_at INTEGER;                  -- the time of the last of those

-- What is due of one run: in the order of the units, and the earliest.
CREATE INDEX holdfast_task_unit ON holdfast_task (run, unit)
    WHERE unit > 0 AND owner IS NULL AND run_at IS NOT NULL;
CREATE INDEX holdfast_task_unit_due ON holdfast_task (run, run_at)
    WHERE unit > 0 AND owner IS NULL AND run_at IS NOT NULL;

CREATE TABLE holdfast_outbox (
    run           INTEGER NOT NULL,
    n             INTEGER NOT NULL,
    step          ANY     NOT NULL,
    type          ANY     NOT NULL,
    payload       BLOB,
    created_at    INTEGER NOT NULL,
    attempts      INTEGER NOT NULL,
    run_at        INTEGER NOT NULL,
    error         ANY,
    delivered_at  INTEGER,
    parked_at     INTEGER,
    owner         TEXT,
    due_at        INTEGER,  -- only of the one whose turn it is: run_at, or the end of its holder's lease
    PRIMARY KEY (run, n)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX holdfast_outbox_turn ON holdfast_outbox (run) WHERE due_at IS NOT NULL;
CREATE INDEX holdfast_outbox_due ON holdfast_outbox (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX holdfast_outbox_left ON holdfast_outbox (run, n) WHERE delivered_at IS NULL AND parked_at IS NULL;

-- For people: chains and graphs as tables. Text that is not valid Unicode is shown as a literal of its bytes.

CREATE VIEW holdfast_chain_instance AS
SELECT r.id AS run, r.instance_id, r.workflow AS workflow_type,
       CAST(r.options AS TEXT) ->> '$.version' AS workflow_version,
       CASE r.status WHEN 'complete' THEN 'COMPLETED' WHEN 'errored' THEN 'FAILED'
            WHEN 'cancelled' THEN 'CANCELED' WHEN 'terminated' THEN 'CANCELED' ELSE 'RUNNING' END AS status,
       p.n AS current_step_seq,
       iif(typeof(p.key) = 'blob', quote(p.key), p.key) AS current_step_type,
       r.created_at,
       iif(r.status = 'complete', r.completed_at, NULL) AS completed_at,
       iif(r.status = 'errored', r.completed_at, NULL) AS failed_at
  FROM holdfast_run AS r
  LEFT JOIN holdfast_fact AS p
    ON p.run = r.id AND p.state = 3
   AND p.n = (SELECT coalesce(min(iif(d.run IS NULL, c.n, NULL)), max(c.n))
                FROM holdfast_fact AS c
                LEFT JOIN holdfast_fact AS d
                  ON d.run = c.run AND d.state = 0 AND d.key = c.key AND d.n = 0 AND d.ok = 1
               WHERE c.run = r.id AND c.state = 3)
 WHERE r.kind = 'chain';

CREATE VIEW holdfast_chain_step AS
WITH step AS (
    SELECT i.run, i.instance_id, p.n AS seq, p.key, p.max_attempts, i.current_step_seq AS current,
           d.ok, d.attempts, d.value,
           t.owner, t.lease_until, t.run_at, t.lost,
           (SELECT count(*) FROM holdfast_fact AS f WHERE f.run = p.run AND f.state = 2 AND f.key = p.key) AS failures,
           (SELECT max(f.n) FROM holdfast_fact AS f WHERE f.run = p.run AND f.state = 2 AND f.key = p.key) AS failed,
           (SELECT max(s.n) FROM holdfast_fact AS s
             WHERE s.run = p.run AND s.state = 1 AND s.key = p.key
               AND NOT EXISTS (SELECT 1 FROM holdfast_fact AS k
                                WHERE k.run = s.run AND k.state = 4 AND k.key = s.key AND k.n = s.n)) AS wait
      FROM holdfast_chain_instance AS i
     CROSS JOIN holdfast_fact AS p ON p.run = i.run AND p.state = 3
      LEFT JOIN holdfast_fact AS d ON d.run = p.run AND d.state = 0 AND d.key = p.key AND d.n = 0
      LEFT JOIN holdfast_task AS t ON t.run = i.run AND t.unit = 0 AND p.n = i.current_step_seq
),
shown AS (
    SELECT step.*, f.value AS failure, w.event_type, w.wake_at,
           CASE WHEN step.ok = 1 THEN 'DONE'
                WHEN step.ok = 0 THEN 'DEAD'
                WHEN step.seq > step.current THEN 'PENDING'
                WHEN step.owner IS NOT NULL THEN 'RUNNING'
                WHEN w.run IS NOT NULL AND (step.run_at IS NULL OR step.run_at >= w.wake_at) THEN 'WAITING'
                ELSE 'READY' END AS status
      FROM step
      LEFT JOIN holdfast_fact AS f ON f.run = step.run AND f.state = 2 AND f.key = step.key AND f.n = step.failed
      LEFT JOIN holdfast_fact AS w ON w.run = step.run AND w.state = 1 AND w.key = step.key AND w.n = step.wait
)
SELECT run, instance_id, seq AS step_seq,
       iif(typeof(key) = 'blob', quote(key), key) AS step_type,
       status,
       coalesce(attempts, failures + coalesce(lost, 0)) AS attempts,
       max_attempts,
       iif(status = 'READY', run_at, NULL) AS next_run_at,
       iif(status = 'RUNNING', owner, NULL) AS locked_by,
       iif(status = 'RUNNING', lease_until, NULL) AS locked_until,
       iif(status = 'WAITING', event_type, NULL) AS waiting_event_type,
       iif(status = 'WAITING', wake_at, NULL) AS deadline_at,
       CASE WHEN lost = 1 AND ok IS NULL THEN 'LEASE_EXPIRED'
            WHEN ok = 0 THEN CAST(value AS TEXT) ->> '$.message'
            ELSE CAST(failure AS TEXT) ->> '$.message' END AS last_error
  FROM shown;

CREATE VIEW holdfast_graph_fact AS
SELECT r.id AS run, r.workflow || '/' || r.instance_id AS pid,
       CASE f.state WHEN 0 THEN 'result/' || iif(typeof(f.key) = 'blob', quote(f.key), f.key)
                    WHEN 1 THEN 'start/' || iif(typeof(f.key) = 'blob', quote(f.key), f.key) || '/' || f.at
                    WHEN 3 THEN 'meta'
                    ELSE 'tombstone' END AS key,
       CASE f.state
            WHEN 0 THEN json_object(
                'status', CASE WHEN f.kind = 'skipped' THEN 'skipped' WHEN f.ok = 1 THEN 'ok' ELSE 'error' END,
                'data', json(CAST(f.value AS TEXT)), 'ts', f.at)
            WHEN 6 THEN json_object(
                'reason', json(coalesce(CAST(f.value AS TEXT) -> '$.reason', CAST(f.value AS TEXT))), 'ts', f.at)
            ELSE CAST(f.value AS TEXT) END AS value
  FROM holdfast_run AS r CROSS JOIN holdfast_fact AS f ON f.run = r.id
 WHERE r.kind = 'graph' AND (f.state IN (0, 1, 6) OR (f.state = 3 AND f.key = 'meta'));

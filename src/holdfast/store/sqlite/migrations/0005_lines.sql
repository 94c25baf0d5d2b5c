-- A line: runs of an instance of which each but the first was asked for by the one before it (continue-as-new, another
-- attempt, the next tick of a schedule). A restart begins a new one. The ids of events are known to the whole line.
ALTER TABLE holdfast_run ADD COLUMN line INTEGER;    -- the first run of its line; NULL: it is that itself
ALTER TABLE holdfast_event ADD COLUMN line INTEGER;  -- of the run it was sent to, if it has a dedup

-- What was asked for is known by its attempt, by the note of the one before, or by a schedule: that goes on after each
-- end the code comes to, unless there is no time left, and whoever restarts sets another end of that time.
WITH asked_for AS (
    SELECT r.id
      FROM holdfast_run AS r
      JOIN holdfast_run AS b
        ON b.workflow = r.workflow AND b.instance_id = r.instance_id AND b.number = r.number - 1
     WHERE r.attempt > 1
        OR (b.status = 'complete' AND b.note = 'continued as run ' || r.number)
        OR (b.status IN ('complete', 'errored') AND CAST(b.options AS TEXT) ->> '$.cron' IS NOT NULL
            AND CAST(b.options AS TEXT) ->> '$.executionEnd' IS CAST(r.options AS TEXT) ->> '$.executionEnd')
),
lined AS (
    SELECT id, max(iif(id IN asked_for, 0, id)) OVER (PARTITION BY instance ORDER BY number) AS line FROM holdfast_run
)
UPDATE holdfast_run SET line = lined.line FROM lined WHERE lined.id = holdfast_run.id AND lined.line < lined.id;

-- Of what runs of one line got under the same id, the first has it for the line, and each of the others for its run.
DROP INDEX holdfast_event_dedup;
WITH keyed AS (
    SELECT e.run, e.n, coalesce(r.line, r.id) AS line,
           row_number() OVER (PARTITION BY coalesce(r.line, r.id), e.dedup ORDER BY e.run) AS place
      FROM holdfast_event AS e JOIN holdfast_run AS r ON r.id = e.run WHERE e.dedup IS NOT NULL
)
UPDATE holdfast_event SET line = iif(keyed.place = 1, keyed.line, keyed.run)
  FROM keyed WHERE keyed.run = holdfast_event.run AND keyed.n = holdfast_event.n;
CREATE UNIQUE INDEX holdfast_event_dedup ON holdfast_event (line, dedup) WHERE dedup IS NOT NULL;

-- A lease of the task's own, which heartbeats renew; NULL: its worker's lease.
ALTER TABLE holdfast_task ADD COLUMN lease_ms INTEGER;

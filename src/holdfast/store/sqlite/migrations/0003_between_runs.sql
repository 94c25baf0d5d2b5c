ALTER TABLE holdfast_run ADD COLUMN parent TEXT;
ALTER TABLE holdfast_run ADD COLUMN parent_run INTEGER;
ALTER TABLE holdfast_run ADD COLUMN parent_close TEXT;
ALTER TABLE holdfast_run ADD COLUMN attempt INTEGER NOT NULL DEFAULT 1;
ALTER TABLE holdfast_run ADD COLUMN options BLOB;
ALTER TABLE holdfast_run ADD COLUMN memo BLOB;
ALTER TABLE holdfast_run ADD COLUMN search BLOB;

CREATE INDEX holdfast_run_child ON holdfast_run (parent_run, instance) WHERE parent_run IS NOT NULL AND current = 1;
CREATE INDEX holdfast_run_living_child ON holdfast_run (parent_run)
    WHERE parent_run IS NOT NULL AND completed_at IS NULL;

ALTER TABLE holdfast_task ADD COLUMN expires_at INTEGER;
ALTER TABLE holdfast_task ADD COLUMN expiry TEXT;

CREATE INDEX holdfast_task_expiry ON holdfast_task (expires_at) WHERE expires_at IS NOT NULL;

ALTER TABLE holdfast_event ADD COLUMN ask ANY;
ALTER TABLE holdfast_event ADD COLUMN reply_ok INTEGER;
ALTER TABLE holdfast_event ADD COLUMN reply BLOB;
ALTER TABLE holdfast_event ADD COLUMN replied_at INTEGER;

CREATE INDEX holdfast_event_type ON holdfast_event (run, type, n) WHERE delivered_at IS NULL;
-- The engine's own: their types begin with @.
CREATE INDEX holdfast_event_engine ON holdfast_event (run, n)
    WHERE delivered_at IS NULL AND type >= '@' AND type < 'A';

CREATE TABLE holdfast_watch (
    target   INTEGER NOT NULL,
    watcher  INTEGER NOT NULL,
    kind     INTEGER NOT NULL,  -- flags
    PRIMARY KEY (target, watcher)
) STRICT, WITHOUT ROWID;

CREATE INDEX holdfast_watch_watcher ON holdfast_watch (watcher);

-- What the current run of an instance can be found by. A value of type ANY keeps its type: 1 and '1' differ.
CREATE TABLE holdfast_term (
    workflow  TEXT    NOT NULL,
    key       ANY     NOT NULL,
    value     ANY     NOT NULL,
    instance  INTEGER NOT NULL,
    PRIMARY KEY (workflow, key, value, instance)
) STRICT, WITHOUT ROWID;

CREATE INDEX holdfast_term_instance ON holdfast_term (instance, key, value);

-- A run with what its task says: the columns of RunRecord in their order, then what the store itself looks at.
DROP VIEW holdfast_record;
CREATE VIEW holdfast_record AS
SELECT r.id AS run, r.workflow, r.instance_id, r.number, r.kind, r.status, r.params, r.output, r.error, r.queue,
       r.priority, r.created_at, r.updated_at, r.started_at, r.completed_at, r.instance, r.seed, r.note,
       r.parent, r.attempt, r.options, r.memo, r.search, r.current,
       t.run_at, t.owner, t.losses, t.signal, t.expires_at, t.expiry, t.epoch, t.topics, t.lost, t.kind AS task_kind
  FROM holdfast_run AS r
  LEFT JOIN holdfast_task AS t ON t.run = r.id AND t.unit = 0;

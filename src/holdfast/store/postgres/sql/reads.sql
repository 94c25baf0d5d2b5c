-- name: current
SELECT * FROM {schema}.holdfast_record WHERE workflow = $1 AND instance_id = $2 ORDER BY number DESC LIMIT 1;

-- name: numbered
SELECT * FROM {schema}.holdfast_record WHERE workflow = $1 AND instance_id = $2 AND number = $3;

-- name: records
SELECT * FROM {schema}.holdfast_record WHERE run = ANY ($1::bigint[]);

-- name: list
SELECT * FROM {schema}.holdfast_list(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17
);

-- name: facts
SELECT {fact.columns}
  FROM {schema}.holdfast_fact WHERE run = $1 AND state < {FactState.SETTLEMENT} ORDER BY state, key, n;

-- name: facts_of_state
SELECT {fact.columns}
  FROM {schema}.holdfast_fact WHERE run = $1 AND state = $2 ORDER BY state, key, n;

-- One range of the primary key for each key; the keys must be distinct. With key = ANY, PostgreSQL before 17 may read
-- and filter all facts of the state, because the index returns them in the required order.
-- name: facts_of_keys
SELECT f.*
  FROM unnest($3::bytea[]) AS requested (key)
 CROSS JOIN LATERAL (SELECT {fact.columns}
                       FROM {schema}.holdfast_fact
                      WHERE run = $1 AND state = $2 AND key = requested.key OFFSET 0) AS f
 ORDER BY f.state, f.key, f.n;

-- name: log_count
SELECT count(*) FROM {schema}.holdfast_log WHERE run = $1 AND step_key IS NULL AND NOT is_replay;

-- name: events_by_number
SELECT n, type, payload, created_at, sender, delivered_at, consumed_by, ask, trace
  FROM {schema}.holdfast_event WHERE run = $1 AND n = ANY ($2::bigint[]);

-- name: mailbox_page
SELECT * FROM {schema}.holdfast_mailbox_page($1, $2);

-- One index range for each type, so that events of other types cost nothing.
-- name: mailbox_page_of_topics
SELECT array_agg(n), array_agg(type), array_agg(payload), array_agg(created_at), array_agg(sender), array_agg(ask),
       array_agg(trace), (SELECT max(n) FROM {schema}.holdfast_event WHERE run = $1)
  FROM (SELECT e.*
          FROM unnest($2::text[]) AS requested (type)
         CROSS JOIN LATERAL (SELECT * FROM {schema}.holdfast_event
                              WHERE run = $1 AND type = requested.type AND n > $3 AND delivered_at IS NULL
                              ORDER BY n LIMIT {PAGE_SIZE} + 1) AS e
         ORDER BY e.n LIMIT {PAGE_SIZE} + 1) AS oldest;

-- The event may be in the mailbox of another run of the line: an earlier run, or a successor to which it was moved.
-- name: reply
SELECT reply_ok, reply FROM {schema}.holdfast_event
 WHERE line = (SELECT coalesce(line, id) FROM {schema}.holdfast_run WHERE id = $1) AND dedup = $2;

-- name: replies
SELECT n, reply_ok, reply FROM {schema}.holdfast_event
 WHERE run = $1 AND n = ANY ($2::bigint[]) AND reply_ok IS NOT NULL;

-- name: children
SELECT workflow || '/' || instance_id, status FROM {schema}.holdfast_run
 WHERE parent_run = $1 AND parent_run IS NOT NULL AND current ORDER BY instance LIMIT $2;

-- name: watches
SELECT r.workflow || '/' || r.instance_id, w.kind
  FROM {schema}.holdfast_watch AS w JOIN {schema}.holdfast_run AS r ON r.id = w.target
 WHERE w.watcher = $1 ORDER BY w.target LIMIT $2;

-- name: watched_by
SELECT r.workflow || '/' || r.instance_id, w.kind
  FROM {schema}.holdfast_watch AS w JOIN {schema}.holdfast_run AS r ON r.id = w.watcher
 WHERE w.target = $1 ORDER BY w.watcher LIMIT $2;

-- name: forks
SELECT f.workflow || '/' || f.instance_id
  FROM {schema}.holdfast_run AS r JOIN {schema}.holdfast_run AS f ON f.forked_from = r.instance
 WHERE r.id = $1 AND f.forked_from IS NOT NULL ORDER BY f.id DESC LIMIT $2;

-- name: events
SELECT n, type, payload, created_at, sender, delivered_at, consumed_by, ask, trace
  FROM {schema}.holdfast_event WHERE run = $1 AND n > $2 ORDER BY n LIMIT $3;

-- name: events_descending
SELECT n, type, payload, created_at, sender, delivered_at, consumed_by, ask, trace
  FROM {schema}.holdfast_event WHERE run = $1 AND n < $2 ORDER BY n DESC LIMIT $3;

-- name: logs
SELECT n, {log.columns}
  FROM {schema}.holdfast_log
 WHERE run = $1 AND n > $2 AND ($4::text IS NULL OR level = $4) AND ($5::text IS NULL OR category = $5)
 ORDER BY n LIMIT $3;

-- name: logs_descending
SELECT n, {log.columns}
  FROM {schema}.holdfast_log
 WHERE run = $1 AND n < $2 AND ($4::text IS NULL OR level = $4) AND ($5::text IS NULL OR category = $5)
 ORDER BY n DESC LIMIT $3;

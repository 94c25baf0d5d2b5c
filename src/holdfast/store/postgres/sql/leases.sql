-- name: heartbeat
SELECT now, run, unit, epoch, signal FROM {schema}.holdfast_heartbeat($1, $2, $3);

-- name: has_signals
SELECT EXISTS (SELECT FROM {schema}.holdfast_task WHERE owner = $1 AND signal <> 0);

-- name: fetch_signals
SELECT run, unit, epoch, signal FROM {schema}.holdfast_signals($1, $2);

-- name: reap
SELECT run, unit, losses, parked FROM {schema}.holdfast_reap($1, $2, $3, $4);

-- name: set_leases
SELECT * FROM {schema}.holdfast_set_leases($1, $2, $3, $4, $5, $6);

-- name: release
SELECT {schema}.holdfast_release($1, $2, $3, $4, $5, $6);

-- Fenced, as every write of a turn is. If a batch has two heartbeats of one attempt, the caller passes only the later
-- one, because ON CONFLICT cannot update a row twice.
-- name: record_heartbeats
INSERT INTO {schema}.holdfast_fact (run, state, key, n, kind, at, started_at, ok, value, attempts, max_attempts,
                                    timeout_ms)
SELECT t.run, {FactState.HEARTBEAT}, b.key, b.n, b.kind, b.at, b.started_at, true, b.value, b.n, b.max_attempts,
       b.timeout_ms
  FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::bigint[], $5::bytea[], $6::bigint[], $7::text[],
              $8::bigint[], $9::bigint[], $10::bytea[], $11::bigint[], $12::bigint[])
       AS b (run, unit, owner, epoch, key, n, kind, at, started_at, value, max_attempts, timeout_ms)
  JOIN {schema}.holdfast_task AS t
    ON t.run = b.run AND t.unit = b.unit AND (t.owner = b.owner) IS TRUE AND t.epoch = b.epoch
    ON CONFLICT (run, state, key, n) DO UPDATE SET at = excluded.at, value = excluded.value;

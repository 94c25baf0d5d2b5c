-- name: has_schema
SELECT to_regclass('{schema}.holdfast_meta') IS NOT NULL;

-- name: schema_version
SELECT coalesce(max(value), 0) FROM {schema}.holdfast_meta WHERE key = 'schema_version';

-- name: settings
SELECT current_setting('server_version'), current_setting('server_version_num')::int, pg_is_in_recovery(),
       current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
       current_setting('synchronous_commit') <> 'off', current_setting('autovacuum') = 'on',
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
       (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend'),
       floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint, pg_notification_queue_usage();

-- name: missing_rights
SELECT string_agg(c.relname, ', ' ORDER BY c.relname) FROM pg_catalog.pg_class AS c
 WHERE c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = $1) AND c.relkind = 'r'
   AND c.relname LIKE 'holdfast\_%' AND c.relname <> 'holdfast_meta'
   -- A list of privileges would mean any of them.
   AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
            AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'));

-- A connection without a network address is a local socket. The folder is NULL for roles that may not know it.
-- name: disk
SELECT pg_database_size(current_database()),
       coalesce(inet_server_addr() <<= '127.0.0.0/8'::inet OR inet_server_addr() = '::1'::inet, true),
       (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'data_directory');

-- name: long_transactions
SELECT count(*) FROM pg_catalog.pg_stat_activity
 WHERE datname = current_database() AND xact_start < clock_timestamp() - make_interval(secs => $1)
   AND backend_type = 'client backend';

-- name: dead_rows
SELECT relname, n_dead_tup, n_live_tup FROM pg_catalog.pg_stat_user_tables
 WHERE schemaname = $1 AND n_dead_tup > $2 AND n_dead_tup > n_live_tup ORDER BY n_dead_tup DESC LIMIT 3;

-- name: unused_slots
SELECT slot_name, behind FROM (
    SELECT slot_name, pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                                           ELSE pg_current_wal_lsn() END, restart_lsn)::bigint AS behind
      FROM pg_catalog.pg_replication_slots WHERE NOT active) AS slots
 WHERE behind > $1;

-- name: transaction_age
SELECT age(datfrozenxid) FROM pg_catalog.pg_database WHERE datname = current_database();

-- name: counts
SELECT (SELECT reason FROM {schema}.holdfast_fence LIMIT 1),
       (SELECT count(*) FROM {schema}.holdfast_task WHERE unit = 0),
       (SELECT coalesce(max(id) - min(id) + 1, 0) FROM {schema}.holdfast_run),
       (SELECT count(*) FROM {schema}.holdfast_task AS t JOIN {schema}.holdfast_run AS r ON r.id = t.run
         WHERE t.unit = 0 AND r.status = {Status.PAUSED} AND r.note IS NOT NULL),
       (SELECT count(*) FROM {schema}.holdfast_task WHERE bucket = {Bucket.SUSPECT}),
       (SELECT count(*) FROM {schema}.holdfast_outbox WHERE parked_at IS NOT NULL AND delivered_at IS NULL),
       (SELECT last_value FROM {schema}.holdfast_run_id);

-- name: waiting
SELECT workflow, queue, pin, count(*), ({schema}.holdfast_begin(NULL) - min(run_at))::bigint
  FROM {schema}.holdfast_task
 WHERE owner IS NULL AND run_at IS NOT NULL AND run_at <= {schema}.holdfast_begin(NULL) - $1::bigint
 GROUP BY queue, workflow, pin ORDER BY queue, workflow, pin;

-- name: living_workers
SELECT queues, version FROM {schema}.holdfast_worker
 WHERE host IS NOT NULL AND lease_until > {schema}.holdfast_begin(NULL);

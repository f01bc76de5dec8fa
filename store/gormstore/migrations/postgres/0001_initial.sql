-- Runs: one row per run key. A tick is materialised by inserting its row; the
-- unique index picks one of all who try. Instants are UTC milliseconds; hashes
-- are SHA-256, 32 bytes; NULL in a unique hash means that nothing is blocked.
-- Names are compared and sorted byte by byte. A row is changed several times.
CREATE TABLE {prefix}executions (
  id               BYTEA    NOT NULL PRIMARY KEY,
  ns               TEXT     COLLATE "C" NOT NULL CHECK (length(ns) <= 128),
  queue            TEXT     COLLATE "C" NOT NULL DEFAULT '' CHECK (length(queue) <= 128),
  job              TEXT     COLLATE "C" NOT NULL CHECK (length(job) <= 128),
  class            SMALLINT NOT NULL,
  claimed          SMALLINT NOT NULL DEFAULT 0,
  tick_ms          BIGINT   NOT NULL DEFAULT 0,
  key_name         TEXT     NOT NULL DEFAULT '',
  shard            INTEGER  NOT NULL DEFAULT 0,
  request          TEXT     NOT NULL DEFAULT '',
  run_hash         BYTEA    NOT NULL,
  dedup_hash       BYTEA,
  active_key       BYTEA,
  active_hash      BYTEA,
  lock_key         TEXT     NOT NULL DEFAULT '',
  zone             TEXT     NOT NULL DEFAULT '',
  spec_hash        TEXT     NOT NULL DEFAULT '',
  state            SMALLINT NOT NULL,
  reason           TEXT     COLLATE "C" NOT NULL DEFAULT '',
  mode             TEXT     COLLATE "C" NOT NULL DEFAULT '',
  priority         INTEGER  NOT NULL DEFAULT 0,
  attempt          INTEGER  NOT NULL DEFAULT 0,
  max_attempts     INTEGER  NOT NULL DEFAULT 0,
  on_crash         SMALLINT NOT NULL DEFAULT 0,
  cancel_requested SMALLINT NOT NULL DEFAULT 0,
  grade            SMALLINT NOT NULL DEFAULT 0,
  timeout_ms       BIGINT   NOT NULL DEFAULT 0,
  missed_count     INTEGER  NOT NULL DEFAULT 0,
  owner            BYTEA,
  owner_label      TEXT     NOT NULL DEFAULT '',
  lease_until_ms   BIGINT   NOT NULL DEFAULT 0,
  fence            BIGINT   NOT NULL DEFAULT 0,
  version          BIGINT   NOT NULL DEFAULT 1,
  run_at_ms        BIGINT   NOT NULL,
  created_ms       BIGINT   NOT NULL,
  started_ms       BIGINT   NOT NULL DEFAULT 0,
  since_ms         BIGINT   NOT NULL DEFAULT 0,
  finished_ms      BIGINT   NOT NULL DEFAULT 0,
  args             BYTEA,
  args_hash        BYTEA,
  result           BYTEA,
  progress         BYTEA,
  checkpoint       BYTEA,
  error_code       TEXT     NOT NULL DEFAULT '',
  error_text       TEXT     NOT NULL DEFAULT '',
  trace_parent     TEXT     NOT NULL DEFAULT '',
  created_by       TEXT     NOT NULL DEFAULT ''
) WITH (fillfactor = 70);

-- guard: unique-run-index
CREATE UNIQUE INDEX {prefix}executions_run ON {prefix}executions (ns, run_hash);
CREATE UNIQUE INDEX {prefix}executions_dedup ON {prefix}executions (ns, dedup_hash) WHERE dedup_hash IS NOT NULL;
-- guard: unique-active-index
CREATE UNIQUE INDEX {prefix}executions_active ON {prefix}executions (ns, active_hash) WHERE active_hash IS NOT NULL;

-- Fetch, in the order of its ORDER BY; partial, so that finished rows cost it
-- nothing.
CREATE INDEX {prefix}executions_due ON {prefix}executions (ns, priority, run_at_ms, id) WHERE state = 1;
-- The first pending row of an active key.
CREATE INDEX {prefix}executions_lane ON {prefix}executions (ns, active_key, priority, run_at_ms, id) WHERE state = 1 AND active_key IS NOT NULL;
-- Takeover and the next end of a lease.
CREATE INDEX {prefix}executions_lease ON {prefix}executions (ns, lease_until_ms, id) WHERE state = 2;
-- The ledger, the sweep and "the last tick that ran".
CREATE INDEX {prefix}executions_tick ON {prefix}executions (ns, job, tick_ms, state);
-- Runs in progress since an instant (open rows have 0), and what is old enough to prune.
CREATE INDEX {prefix}executions_finished ON {prefix}executions (ns, job, finished_ms);

-- Ticks that did not run, one row a stretch.
CREATE TABLE {prefix}tick_ranges (
  ns          TEXT     COLLATE "C" NOT NULL CHECK (length(ns) <= 128),
  job         TEXT     COLLATE "C" NOT NULL CHECK (length(job) <= 128),
  from_ms     BIGINT   NOT NULL,
  to_ms       BIGINT   NOT NULL,
  ticks       BIGINT   NOT NULL,
  state       SMALLINT NOT NULL,
  reason      TEXT     COLLATE "C" NOT NULL DEFAULT '',
  recorded_ms BIGINT   NOT NULL,
  PRIMARY KEY (ns, job, from_ms)
);

-- One row per job: locked by claims and sweeps, counter of its fences.
CREATE TABLE {prefix}job_state (
  ns              TEXT   COLLATE "C" NOT NULL CHECK (length(ns) <= 128),
  job             TEXT   COLLATE "C" NOT NULL CHECK (length(job) <= 128),
  settled_ms      BIGINT NOT NULL,
  pruned_ms       BIGINT NOT NULL DEFAULT 0,
  fence           BIGINT NOT NULL DEFAULT 0,
  paused_ms       BIGINT NOT NULL DEFAULT 0,
  paused_until_ms BIGINT NOT NULL DEFAULT 0,
  paused_by       TEXT   NOT NULL DEFAULT '',
  pause_reason    TEXT   NOT NULL DEFAULT '',
  spec_hash       TEXT   NOT NULL DEFAULT '',
  revisions       TEXT   NOT NULL DEFAULT '[]',
  version         BIGINT NOT NULL DEFAULT 1,
  PRIMARY KEY (ns, job)
) WITH (fillfactor = 50);

-- Counters that only grow: scope 'lock' for what queue runs exclude each other
-- by (name is the active key).
CREATE TABLE {prefix}fences (
  ns    TEXT   COLLATE "C" NOT NULL CHECK (length(ns) <= 128),
  scope TEXT   COLLATE "C" NOT NULL CHECK (length(scope) <= 32),
  name  BYTEA  NOT NULL,
  fence BIGINT NOT NULL,
  PRIMARY KEY (ns, scope, name)
) WITH (fillfactor = 70);

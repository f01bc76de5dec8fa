-- Runs: one row per run key. A tick is materialised by inserting its row; the
-- unique index picks one of all who try. Instants are UTC milliseconds; hashes
-- are SHA-256, 32 bytes; NULL in a unique hash means that nothing is blocked.
-- On a server: hashes and ids binary(n), names varbinary or a bin collation.
CREATE TABLE {prefix}executions (
  id               BLOB    NOT NULL PRIMARY KEY,
  ns               TEXT    NOT NULL CHECK (length(ns) <= 128),
  queue            TEXT    NOT NULL DEFAULT '' CHECK (length(queue) <= 128),
  job              TEXT    NOT NULL CHECK (length(job) <= 128),
  class            INTEGER NOT NULL,
  claimed          INTEGER NOT NULL DEFAULT 0,
  tick_ms          INTEGER NOT NULL DEFAULT 0,
  key_name         TEXT    NOT NULL DEFAULT '',
  shard            INTEGER NOT NULL DEFAULT 0,
  request          TEXT    NOT NULL DEFAULT '',
  run_hash         BLOB    NOT NULL,
  dedup_hash       BLOB,
  active_key       BLOB,
  active_hash      BLOB,
  lock_key         TEXT    NOT NULL DEFAULT '',
  zone             TEXT    NOT NULL DEFAULT '',
  spec_hash        TEXT    NOT NULL DEFAULT '',
  state            INTEGER NOT NULL,
  reason           TEXT    NOT NULL DEFAULT '',
  mode             TEXT    NOT NULL DEFAULT '',
  priority         INTEGER NOT NULL DEFAULT 0,
  attempt          INTEGER NOT NULL DEFAULT 0,
  max_attempts     INTEGER NOT NULL DEFAULT 0,
  on_crash         INTEGER NOT NULL DEFAULT 0,
  cancel_requested INTEGER NOT NULL DEFAULT 0,
  grade            INTEGER NOT NULL DEFAULT 0,
  timeout_ms       INTEGER NOT NULL DEFAULT 0,
  missed_count     INTEGER NOT NULL DEFAULT 0,
  owner            BLOB,
  owner_label      TEXT    NOT NULL DEFAULT '',
  lease_until_ms   INTEGER NOT NULL DEFAULT 0,
  fence            INTEGER NOT NULL DEFAULT 0,
  version          INTEGER NOT NULL DEFAULT 1,
  run_at_ms        INTEGER NOT NULL,
  created_ms       INTEGER NOT NULL,
  started_ms       INTEGER NOT NULL DEFAULT 0,
  since_ms         INTEGER NOT NULL DEFAULT 0,
  finished_ms      INTEGER NOT NULL DEFAULT 0,
  args             BLOB,
  args_hash        BLOB,
  result           BLOB,
  progress         BLOB,
  checkpoint       BLOB,
  error_code       TEXT    NOT NULL DEFAULT '',
  error_text       TEXT    NOT NULL DEFAULT '',
  trace_parent     TEXT    NOT NULL DEFAULT '',
  created_by       TEXT    NOT NULL DEFAULT ''
);

-- guard: unique-run-index
CREATE UNIQUE INDEX {prefix}executions_run ON {prefix}executions (ns, run_hash);
CREATE UNIQUE INDEX {prefix}executions_dedup ON {prefix}executions (ns, dedup_hash) WHERE dedup_hash IS NOT NULL;
-- guard: unique-active-index
CREATE UNIQUE INDEX {prefix}executions_active ON {prefix}executions (ns, active_hash) WHERE active_hash IS NOT NULL;

-- Fetch, in the order of its ORDER BY; partial, so that finished rows cost it
-- nothing. A server without partial indexes puts state behind ns.
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
  ns          TEXT    NOT NULL CHECK (length(ns) <= 128),
  job         TEXT    NOT NULL CHECK (length(job) <= 128),
  from_ms     INTEGER NOT NULL,
  to_ms       INTEGER NOT NULL,
  ticks       INTEGER NOT NULL,
  state       INTEGER NOT NULL,
  reason      TEXT    NOT NULL DEFAULT '',
  recorded_ms INTEGER NOT NULL,
  PRIMARY KEY (ns, job, from_ms)
);

-- One row per job: locked by claims and sweeps, counter of its fences.
CREATE TABLE {prefix}job_state (
  ns              TEXT    NOT NULL CHECK (length(ns) <= 128),
  job             TEXT    NOT NULL CHECK (length(job) <= 128),
  settled_ms      INTEGER NOT NULL,
  pruned_ms       INTEGER NOT NULL DEFAULT 0,
  fence           INTEGER NOT NULL DEFAULT 0,
  paused_ms       INTEGER NOT NULL DEFAULT 0,
  paused_until_ms INTEGER NOT NULL DEFAULT 0,
  paused_by       TEXT    NOT NULL DEFAULT '',
  pause_reason    TEXT    NOT NULL DEFAULT '',
  spec_hash       TEXT    NOT NULL DEFAULT '',
  revisions       TEXT    NOT NULL DEFAULT '[]',
  version         INTEGER NOT NULL DEFAULT 1,
  PRIMARY KEY (ns, job)
);

-- Counters that only grow: scope 'lock' for what queue runs exclude each other
-- by (name is the active key).
CREATE TABLE {prefix}fences (
  ns    TEXT    NOT NULL CHECK (length(ns) <= 128),
  scope TEXT    NOT NULL CHECK (length(scope) <= 32),
  name  BLOB    NOT NULL,
  fence INTEGER NOT NULL,
  PRIMARY KEY (ns, scope, name)
);

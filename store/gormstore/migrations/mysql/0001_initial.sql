-- Runs: one row per run key. A tick is materialised by inserting its row; the
-- unique index picks one of all who try. Instants are UTC milliseconds; hashes
-- are SHA-256, 32 bytes; NULL in a unique hash means that nothing is blocked.
-- Names are bytes: text would be compared without case, accents and trailing
-- blanks. There are no partial indexes: state stands behind ns, and an index is
-- searched in the order of its ORDER BY, so that a fetch locks no row in vain.
CREATE TABLE IF NOT EXISTS {prefix}executions (
  id               BINARY(16)      NOT NULL PRIMARY KEY,
  ns               VARBINARY(512)  NOT NULL,
  queue            VARBINARY(512)  NOT NULL DEFAULT '',
  job              VARBINARY(512)  NOT NULL,
  class            SMALLINT        NOT NULL,
  claimed          SMALLINT        NOT NULL DEFAULT 0,
  tick_ms          BIGINT          NOT NULL DEFAULT 0,
  key_name         VARBINARY(4096) NOT NULL DEFAULT '',
  shard            INTEGER         NOT NULL DEFAULT 0,
  request          VARBINARY(4096) NOT NULL DEFAULT '',
  run_hash         BINARY(32)      NOT NULL,
  dedup_hash       BINARY(32),
  active_key       BINARY(32),
  active_hash      BINARY(32),
  lock_key         VARBINARY(4096) NOT NULL DEFAULT '',
  zone             VARBINARY(255)  NOT NULL DEFAULT '',
  spec_hash        VARBINARY(255)  NOT NULL DEFAULT '',
  state            SMALLINT        NOT NULL,
  reason           VARBINARY(64)   NOT NULL DEFAULT '',
  mode             VARBINARY(64)   NOT NULL DEFAULT '',
  priority         INTEGER         NOT NULL DEFAULT 0,
  attempt          INTEGER         NOT NULL DEFAULT 0,
  max_attempts     INTEGER         NOT NULL DEFAULT 0,
  on_crash         SMALLINT        NOT NULL DEFAULT 0,
  cancel_requested SMALLINT        NOT NULL DEFAULT 0,
  grade            SMALLINT        NOT NULL DEFAULT 0,
  timeout_ms       BIGINT          NOT NULL DEFAULT 0,
  missed_count     INTEGER         NOT NULL DEFAULT 0,
  owner            BINARY(16),
  owner_label      VARBINARY(1024) NOT NULL DEFAULT '',
  lease_until_ms   BIGINT          NOT NULL DEFAULT 0,
  fence            BIGINT          NOT NULL DEFAULT 0,
  version          BIGINT          NOT NULL DEFAULT 1,
  run_at_ms        BIGINT          NOT NULL,
  created_ms       BIGINT          NOT NULL,
  started_ms       BIGINT          NOT NULL DEFAULT 0,
  since_ms         BIGINT          NOT NULL DEFAULT 0,
  finished_ms      BIGINT          NOT NULL DEFAULT 0,
  args             MEDIUMBLOB,
  args_hash        BINARY(32),
  result           MEDIUMBLOB,
  progress         MEDIUMBLOB,
  checkpoint       MEDIUMBLOB,
  error_code       VARBINARY(1024) NOT NULL DEFAULT '',
  error_text       MEDIUMBLOB      NOT NULL DEFAULT (''),
  trace_parent     VARBINARY(1024) NOT NULL DEFAULT '',
  created_by       VARBINARY(1024) NOT NULL DEFAULT '',
  UNIQUE INDEX {prefix}executions_run (ns, run_hash),
  UNIQUE INDEX {prefix}executions_dedup (ns, dedup_hash),
  UNIQUE INDEX {prefix}executions_active (ns, active_hash),
  INDEX {prefix}executions_due (ns, state, priority, run_at_ms, id),
  INDEX {prefix}executions_lane (ns, active_key, state, priority, run_at_ms, id),
  INDEX {prefix}executions_lease (ns, state, lease_until_ms, id),
  INDEX {prefix}executions_tick (ns, job, tick_ms, state),
  INDEX {prefix}executions_finished (ns, job, finished_ms)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Ticks that did not run, one row a stretch.
CREATE TABLE IF NOT EXISTS {prefix}tick_ranges (
  ns          VARBINARY(512) NOT NULL,
  job         VARBINARY(512) NOT NULL,
  from_ms     BIGINT         NOT NULL,
  to_ms       BIGINT         NOT NULL,
  ticks       BIGINT         NOT NULL,
  state       SMALLINT       NOT NULL,
  reason      VARBINARY(64)  NOT NULL DEFAULT '',
  recorded_ms BIGINT         NOT NULL,
  PRIMARY KEY (ns, job, from_ms)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- One row per job: locked by claims and sweeps, counter of its fences.
CREATE TABLE IF NOT EXISTS {prefix}job_state (
  ns              VARBINARY(512)  NOT NULL,
  job             VARBINARY(512)  NOT NULL,
  settled_ms      BIGINT          NOT NULL,
  pruned_ms       BIGINT          NOT NULL DEFAULT 0,
  fence           BIGINT          NOT NULL DEFAULT 0,
  paused_ms       BIGINT          NOT NULL DEFAULT 0,
  paused_until_ms BIGINT          NOT NULL DEFAULT 0,
  paused_by       VARBINARY(1024) NOT NULL DEFAULT '',
  pause_reason    VARBINARY(4096) NOT NULL DEFAULT '',
  spec_hash       VARBINARY(255)  NOT NULL DEFAULT '',
  revisions       MEDIUMBLOB      NOT NULL DEFAULT ('[]'),
  version         BIGINT          NOT NULL DEFAULT 1,
  PRIMARY KEY (ns, job)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Counters that only grow: scope 'lock' for what queue runs exclude each other
-- by (name is the active key).
CREATE TABLE IF NOT EXISTS {prefix}fences (
  ns    VARBINARY(512) NOT NULL,
  scope VARBINARY(32)  NOT NULL,
  name  BINARY(32)     NOT NULL,
  fence BIGINT         NOT NULL,
  PRIMARY KEY (ns, scope, name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

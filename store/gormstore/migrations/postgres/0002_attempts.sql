-- Attempts that ended without ending their run: the last one is the run's own row.
-- Written when the attempt ends, never changed, deleted with the run.
CREATE TABLE {prefix}attempts (
  execution_id BYTEA    NOT NULL,
  attempt      INTEGER  NOT NULL,
  owner_label  TEXT     NOT NULL DEFAULT '',
  started_ms   BIGINT   NOT NULL,
  ended_ms     BIGINT   NOT NULL,
  ended_as     TEXT     NOT NULL,
  reason       TEXT     NOT NULL DEFAULT '',
  mode         TEXT     NOT NULL DEFAULT '',
  fence        BIGINT   NOT NULL DEFAULT 0,
  error_code   TEXT     NOT NULL DEFAULT '',
  error_text   TEXT     NOT NULL DEFAULT '',
  note         TEXT     NOT NULL DEFAULT '',
  PRIMARY KEY (execution_id, attempt)
);

-- How far each job's rows have been looked at for pruning, by what they became. It
-- only saves looking twice; job_state.pruned_ms is what closes ticks.
CREATE TABLE {prefix}prune_marks (
  ns      TEXT   COLLATE "C" NOT NULL CHECK (length(ns) <= 128),
  job     TEXT   COLLATE "C" NOT NULL CHECK (length(job) <= 128),
  part    TEXT   COLLATE "C" NOT NULL,
  upto_ms BIGINT NOT NULL,
  PRIMARY KEY (ns, job, part)
);

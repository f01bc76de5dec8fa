-- Attempts that ended without ending their run: the last one is the run's own row.
-- Written when the attempt ends, never changed, deleted with the run.
CREATE TABLE IF NOT EXISTS {prefix}attempts (
  execution_id BINARY(16)      NOT NULL,
  attempt      INTEGER         NOT NULL,
  owner_label  VARBINARY(1024) NOT NULL DEFAULT '',
  started_ms   BIGINT          NOT NULL,
  ended_ms     BIGINT          NOT NULL,
  ended_as     VARBINARY(32)   NOT NULL,
  reason       VARBINARY(64)   NOT NULL DEFAULT '',
  mode         VARBINARY(64)   NOT NULL DEFAULT '',
  fence        BIGINT          NOT NULL DEFAULT 0,
  error_code   VARBINARY(1024) NOT NULL DEFAULT '',
  error_text   MEDIUMBLOB      NOT NULL DEFAULT (''),
  note         VARBINARY(1024) NOT NULL DEFAULT '',
  PRIMARY KEY (execution_id, attempt)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- How far each job's rows have been looked at for pruning, by what they became. It
-- only saves looking twice; job_state.pruned_ms is what closes ticks.
CREATE TABLE IF NOT EXISTS {prefix}prune_marks (
  ns      VARBINARY(512) NOT NULL,
  job     VARBINARY(512) NOT NULL,
  part    VARBINARY(32)  NOT NULL,
  upto_ms BIGINT         NOT NULL,
  PRIMARY KEY (ns, job, part)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Parts of a run that are done: a later attempt skips them. The row is written in
-- the transaction of the step's own writes.
CREATE TABLE IF NOT EXISTS {prefix}steps (
  run_id  BINARY(16)     NOT NULL,
  name    VARBINARY(512) NOT NULL,
  ns      VARBINARY(512) NOT NULL,
  attempt INTEGER        NOT NULL,
  done_ms BIGINT         NOT NULL,
  result  MEDIUMBLOB,
  PRIMARY KEY (run_id, name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

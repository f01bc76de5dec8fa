-- Parts of a run that are done: a later attempt skips them. The row is written in
-- the transaction of the step's own writes.
CREATE TABLE {prefix}steps (
  run_id  BYTEA   NOT NULL,
  name    TEXT    COLLATE "C" NOT NULL CHECK (length(name) <= 128),
  ns      TEXT    COLLATE "C" NOT NULL,
  attempt INTEGER NOT NULL,
  done_ms BIGINT  NOT NULL,
  result  BYTEA,
  PRIMARY KEY (run_id, name)
);

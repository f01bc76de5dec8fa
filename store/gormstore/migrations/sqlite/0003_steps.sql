-- Parts of a run that are done: a later attempt skips them. The row is written in
-- the transaction of the step's own writes.
CREATE TABLE {prefix}steps (
  run_id  BLOB    NOT NULL,
  name    TEXT    NOT NULL CHECK (length(name) <= 128),
  ns      TEXT    NOT NULL,
  attempt INTEGER NOT NULL,
  done_ms INTEGER NOT NULL,
  result  BLOB,
  PRIMARY KEY (run_id, name)
);

-- Locks: a row per key, kept on release, because it is the key's fence counter.
-- Instants are UTC microseconds by this database's clock; until_us 0 is free.
CREATE TABLE {prefix}locks (
  name     TEXT    NOT NULL PRIMARY KEY CHECK (length(name) <= 512),
  token    BLOB    NOT NULL,
  fence    INTEGER NOT NULL,
  since_us INTEGER NOT NULL,
  until_us INTEGER NOT NULL,
  beats    INTEGER NOT NULL DEFAULT 0,
  label    TEXT    NOT NULL DEFAULT ''
);

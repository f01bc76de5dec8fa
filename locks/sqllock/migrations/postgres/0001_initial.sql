-- Locks: a row per key, kept on release, because it is the key's fence counter.
-- Instants are UTC microseconds by this database's clock; until_us 0 is free.
-- Keys are compared and sorted byte by byte. A row is changed often and in place.
CREATE TABLE {prefix}locks (
  name     TEXT COLLATE "C" NOT NULL PRIMARY KEY CHECK (octet_length(name) <= 512),
  token    BYTEA  NOT NULL,
  fence    BIGINT NOT NULL,
  since_us BIGINT NOT NULL,
  until_us BIGINT NOT NULL,
  beats    BIGINT NOT NULL DEFAULT 0,
  label    TEXT   NOT NULL DEFAULT ''
) WITH (fillfactor = 50);

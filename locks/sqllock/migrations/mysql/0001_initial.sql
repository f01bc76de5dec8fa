-- Locks: a row per key, kept on release, because it is the key's fence counter.
-- Instants are UTC microseconds by this database's clock; until_us 0 is free.
-- Keys are bytes: text would be compared without case and trailing blanks.
CREATE TABLE IF NOT EXISTS {prefix}locks (
  name     VARBINARY(512) NOT NULL PRIMARY KEY,
  token    BINARY(16)     NOT NULL,
  fence    BIGINT         NOT NULL,
  since_us BIGINT         NOT NULL,
  until_us BIGINT         NOT NULL,
  beats    BIGINT         NOT NULL DEFAULT 0,
  label    VARBINARY(255) NOT NULL DEFAULT ''
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

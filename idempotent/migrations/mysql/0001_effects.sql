-- Effects of runs whose record is in another database: one row per run, by a hash
-- of its namespace and key. Done is written in the transaction of the effect.
CREATE TABLE IF NOT EXISTS {prefix}effects (
  id      BINARY(32)     NOT NULL PRIMARY KEY,
  ns      VARBINARY(512) NOT NULL,
  attempt INTEGER        NOT NULL,
  owner   BINARY(16)     NOT NULL,
  done    SMALLINT       NOT NULL,
  result  MEDIUMBLOB,
  seen_ms BIGINT         NOT NULL,
  version BIGINT         NOT NULL DEFAULT 1,
  INDEX {prefix}effects_seen (done, seen_ms)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- The highest fence that a resource has seen; name is a hash of the resource.
CREATE TABLE IF NOT EXISTS {prefix}effect_fences (
  ns    VARBINARY(512) NOT NULL,
  scope VARBINARY(32)  NOT NULL,
  name  BINARY(32)     NOT NULL,
  fence BIGINT         NOT NULL,
  PRIMARY KEY (ns, scope, name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

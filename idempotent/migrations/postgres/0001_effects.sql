-- Effects of runs whose record is in another database: one row per run, by a hash
-- of its namespace and key. Done is written in the transaction of the effect.
CREATE TABLE {prefix}effects (
  id      BYTEA    NOT NULL PRIMARY KEY,
  ns      TEXT     COLLATE "C" NOT NULL,
  attempt INTEGER  NOT NULL,
  owner   BYTEA    NOT NULL,
  done    SMALLINT NOT NULL,
  result  BYTEA,
  seen_ms BIGINT   NOT NULL,
  version BIGINT   NOT NULL DEFAULT 1
) WITH (fillfactor = 70);
CREATE INDEX {prefix}effects_seen ON {prefix}effects (done, seen_ms);

-- The highest fence that a resource has seen; name is a hash of the resource.
CREATE TABLE {prefix}effect_fences (
  ns    TEXT   COLLATE "C" NOT NULL,
  scope TEXT   COLLATE "C" NOT NULL,
  name  BYTEA  NOT NULL,
  fence BIGINT NOT NULL,
  PRIMARY KEY (ns, scope, name)
) WITH (fillfactor = 70);

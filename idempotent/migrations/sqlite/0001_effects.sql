-- Effects of runs whose record is in another database: one row per run, by a hash
-- of its namespace and key. Done is written in the transaction of the effect.
CREATE TABLE {prefix}effects (
  id      BLOB    NOT NULL PRIMARY KEY,
  ns      TEXT    NOT NULL,
  attempt INTEGER NOT NULL,
  owner   BLOB    NOT NULL,
  done    INTEGER NOT NULL,
  result  BLOB,
  seen_ms INTEGER NOT NULL,
  version INTEGER NOT NULL DEFAULT 1
);
CREATE INDEX {prefix}effects_seen ON {prefix}effects (done, seen_ms);

-- The highest fence that a resource has seen; name is a hash of the resource.
CREATE TABLE {prefix}effect_fences (
  ns    TEXT    NOT NULL,
  scope TEXT    NOT NULL,
  name  BLOB    NOT NULL,
  fence INTEGER NOT NULL,
  PRIMARY KEY (ns, scope, name)
);

-- Changes of the degradation switch, as they were made: the audit, and the place
-- that turns a fleet. Rows are never changed or deleted.
CREATE TABLE {prefix}switch_changes (
  id       INTEGER PRIMARY KEY AUTOINCREMENT,
  token    BLOB    NOT NULL,
  ns       TEXT    NOT NULL CHECK (length(ns) <= 128),
  fleet    INTEGER NOT NULL,
  at_ms    INTEGER NOT NULL,
  process  TEXT    NOT NULL,
  source   TEXT    NOT NULL,
  by_whom  TEXT    NOT NULL,
  reason   TEXT    NOT NULL,
  was      TEXT    NOT NULL,
  became   TEXT    NOT NULL,
  until_ms INTEGER NOT NULL
);
CREATE UNIQUE INDEX {prefix}switch_changes_token ON {prefix}switch_changes (token);
CREATE INDEX {prefix}switch_changes_newest ON {prefix}switch_changes (ns, fleet, id);

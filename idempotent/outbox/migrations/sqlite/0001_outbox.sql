-- Messages to be sent: written in the transaction of what they tell of. seq only
-- orders; it is drawn before the commit, so a lower one can appear after a higher one.
-- lane is a hash of topic and key, NULL for none. States: 1 open, 2 sent, 3 parked.
CREATE TABLE {prefix}outbox (
  seq        INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  id         TEXT    NOT NULL,
  topic      TEXT    NOT NULL,
  key_name   TEXT    NOT NULL,
  lane       BLOB,
  payload    BLOB    NOT NULL,
  headers    BLOB    NOT NULL,
  state      INTEGER NOT NULL DEFAULT 1,
  attempts   INTEGER NOT NULL DEFAULT 0,
  silence    INTEGER NOT NULL DEFAULT 0,
  added_ms   INTEGER NOT NULL,
  due_ms     INTEGER NOT NULL DEFAULT 0,
  ended_ms   INTEGER NOT NULL DEFAULT 0,
  error_text TEXT    NOT NULL DEFAULT '',
  version    INTEGER NOT NULL DEFAULT 1
);
-- guard: outbox-unique
CREATE UNIQUE INDEX {prefix}outbox_id ON {prefix}outbox (id);
CREATE INDEX {prefix}outbox_open ON {prefix}outbox (seq) WHERE state = 1;
CREATE INDEX {prefix}outbox_lane ON {prefix}outbox (lane, seq) WHERE state = 1 AND lane IS NOT NULL;
CREATE INDEX {prefix}outbox_ended ON {prefix}outbox (state, ended_ms) WHERE state > 1;

-- Which relay works: one at a time.
CREATE TABLE {prefix}outbox_relay (
  name     TEXT    NOT NULL PRIMARY KEY,
  owner    BLOB,
  until_ms INTEGER NOT NULL,
  version  INTEGER NOT NULL DEFAULT 1
);

-- Messages to be sent: written in the transaction of what they tell of. seq only
-- orders; it is drawn before the commit, so a lower one can appear after a higher one.
-- lane is a hash of topic and key, NULL for none. States: 1 open, 2 sent, 3 parked.
CREATE TABLE IF NOT EXISTS {prefix}outbox (
  seq        BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
  id         VARBINARY(128)  NOT NULL,
  topic      VARBINARY(255)  NOT NULL,
  key_name   VARBINARY(512)  NOT NULL,
  lane       BINARY(32),
  payload    MEDIUMBLOB      NOT NULL,
  headers    BLOB            NOT NULL,
  state      SMALLINT        NOT NULL DEFAULT 1,
  attempts   INTEGER         NOT NULL DEFAULT 0,
  silence    INTEGER         NOT NULL DEFAULT 0,
  added_ms   BIGINT          NOT NULL,
  due_ms     BIGINT          NOT NULL DEFAULT 0,
  ended_ms   BIGINT          NOT NULL DEFAULT 0,
  error_text VARBINARY(4096) NOT NULL DEFAULT '',
  version    BIGINT          NOT NULL DEFAULT 1,
  UNIQUE INDEX {prefix}outbox_id (id),
  INDEX {prefix}outbox_open (state, seq),
  INDEX {prefix}outbox_lane (state, lane, seq),
  INDEX {prefix}outbox_ended (state, ended_ms)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Which relay works: one at a time.
CREATE TABLE IF NOT EXISTS {prefix}outbox_relay (
  name     VARBINARY(32) NOT NULL PRIMARY KEY,
  owner    BINARY(16),
  until_ms BIGINT        NOT NULL,
  version  BIGINT        NOT NULL DEFAULT 1
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

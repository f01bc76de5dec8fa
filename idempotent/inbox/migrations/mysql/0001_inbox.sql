-- Messages that were handled, by consumer: written in the transaction of what the
-- message led to. message is a hash of its ID; owner tells who wrote the row.
CREATE TABLE IF NOT EXISTS {prefix}inbox (
  consumer VARBINARY(255) NOT NULL,
  message  BINARY(32) NOT NULL,
  owner    BINARY(16) NOT NULL,
  seen_ms  BIGINT NOT NULL,
  version  BIGINT NOT NULL DEFAULT 1,
  UNIQUE INDEX {prefix}inbox_once (consumer, message),
  INDEX {prefix}inbox_seen (seen_ms)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Messages that were handled, by consumer: written in the transaction of what the
-- message led to. message is a hash of its ID; owner tells who wrote the row.
CREATE TABLE {prefix}inbox (
  consumer TEXT NOT NULL,
  message  BLOB NOT NULL,
  owner    BLOB NOT NULL,
  seen_ms  INTEGER NOT NULL,
  version  INTEGER NOT NULL DEFAULT 1
);
-- guard: inbox-unique
CREATE UNIQUE INDEX {prefix}inbox_once ON {prefix}inbox (consumer, message);
CREATE INDEX {prefix}inbox_seen ON {prefix}inbox (seen_ms);

-- Changes of the degradation switch, as they were made: the audit, and the place
-- that turns a fleet. Rows are never changed or deleted.
CREATE TABLE IF NOT EXISTS {prefix}switch_changes (
  id       BIGINT          NOT NULL AUTO_INCREMENT,
  token    BINARY(16)      NOT NULL,
  ns       VARBINARY(512)  NOT NULL,
  fleet    SMALLINT        NOT NULL,
  at_ms    BIGINT          NOT NULL,
  process  VARBINARY(1024) NOT NULL,
  source   VARBINARY(64)   NOT NULL,
  by_whom  VARBINARY(1024) NOT NULL,
  reason   VARBINARY(2048) NOT NULL,
  was      MEDIUMBLOB      NOT NULL,
  became   MEDIUMBLOB      NOT NULL,
  until_ms BIGINT          NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY {prefix}switch_changes_token (token),
  KEY {prefix}switch_changes_newest (ns, fleet, id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

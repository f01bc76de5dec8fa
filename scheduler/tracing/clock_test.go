package tracing_test

import (
	"database/sql/driver"
	"time"

	"modernc.org/sqlite"
)

// The clock of SQLite is the one of the tests, so that a store lives on virtual time.
func init() {
	sqlite.MustRegisterScalarFunction("unixepoch", 1, func(*sqlite.FunctionContext, []driver.Value) (driver.Value, error) {
		return float64(time.Now().UnixMicro()) / 1e6, nil
	})
}

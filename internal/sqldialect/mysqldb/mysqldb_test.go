package mysqldb_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/configs/transport"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/internal/sqldialect/mysqldb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The dialect reads the number from the driver's text.
func TestDialectReadsTheDriversErrors(t *testing.T) {
	d := sqldialect.MySQL()
	for _, err := range []error{
		&driver.MySQLError{Number: 1213, SQLState: [5]byte{'4', '0', '0', '0', '1'}, Message: "x"},
		&driver.MySQLError{Number: 1213, Message: "x"},
	} {
		if d.Classify(fmt.Errorf("a: %w", err)) != sqldialect.Busy {
			t.Errorf("%v is not recognised", err)
		}
	}
	if d.Classify(errors.Join(driver.ErrInvalidConn)) != sqldialect.Unavailable {
		t.Error("a lost connection is not recognised")
	}
}

func TestTransportRules(t *testing.T) {
	for _, c := range []struct {
		config sqldialect.ServerConfig
		ok     bool
	}{
		{sqldialect.ServerConfig{DSN: secret.New("u:canary@tcp(127.0.0.1:3306)/d")}, true},
		{sqldialect.ServerConfig{DSN: secret.New("u:canary@unix(/run/x.sock)/d")}, true},
		{sqldialect.ServerConfig{DSN: secret.New("u:canary@tcp(db.example:3306)/d")}, false},
		{sqldialect.ServerConfig{DSN: secret.New("u:canary@tcp(db.example:3306)/d"), AllowPlaintext: true}, true},
		{sqldialect.ServerConfig{DSN: secret.New("u:canary@tcp(db.example:3306)/d?tls=true")}, true},
		{sqldialect.ServerConfig{DSN: secret.New("u:canary@tcp(db.example:3306)/d?tls=skip-verify")}, false},
		{sqldialect.ServerConfig{DSN: secret.New("u:canary@tcp(db.example:3306)/d?tls=preferred")}, false},
		{sqldialect.ServerConfig{DSN: secret.New("u:canary@tcp(db.example:3306)/d"), TLS: transport.TLS{Enabled: true}}, true},
		{sqldialect.ServerConfig{DSN: secret.New("u:canary@tcp(127.0.0.1:3306)/")}, false},
		{sqldialect.ServerConfig{DSN: secret.New("u:canary@tcp(127.0.0.1:3306/d")}, false},
		{sqldialect.ServerConfig{}, false},
	} {
		_, err := mysqldb.Parse(c.config)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.config.DSN.Reveal(), err)
		}
		if err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("the password shows: %v", err)
		}
	}
}

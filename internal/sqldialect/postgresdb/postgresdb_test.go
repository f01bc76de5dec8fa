package postgresdb_test

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/configs/transport"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/internal/sqldialect/postgresdb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTransportRules(t *testing.T) {
	t.Setenv("PGSSLMODE", "")
	for _, c := range []struct {
		config sqldialect.ServerConfig
		ok     bool
	}{
		{sqldialect.ServerConfig{DSN: secret.New("postgres://u:canary@127.0.0.1/d?sslmode=disable")}, true},
		{sqldialect.ServerConfig{DSN: secret.New("host=/run/postgresql user=u password=canary dbname=d")}, true},
		{sqldialect.ServerConfig{DSN: secret.New("postgres://u:canary@db.example/d")}, false}, // prefer
		{sqldialect.ServerConfig{DSN: secret.New("postgres://u:canary@db.example/d?sslmode=require")}, false},
		{sqldialect.ServerConfig{DSN: secret.New("postgres://u:canary@db.example/d?sslmode=verify-full")}, true},
		{sqldialect.ServerConfig{DSN: secret.New("postgres://u:canary@db.example/d?sslmode=disable"), AllowPlaintext: true}, true},
		{sqldialect.ServerConfig{DSN: secret.New("postgres://u:canary@127.0.0.1,db.example/d?sslmode=disable")}, false},
		{sqldialect.ServerConfig{DSN: secret.New("postgres://u:canary@db.example/d"), TLS: transport.TLS{Enabled: true}}, true},
		{sqldialect.ServerConfig{DSN: secret.New("postgres://u:canary@[::1/d")}, false},
		{sqldialect.ServerConfig{}, false},
	} {
		_, err := postgresdb.Parse(c.config)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.config.DSN.Reveal(), err)
		}
		if err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("the password shows: %v", err)
		}
	}
}

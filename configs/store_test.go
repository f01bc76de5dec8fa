package configs_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/solotick/solotick/configs"
)

// TestStoreOnAServer: what stands in the file is what the store is opened with.
func TestStoreOnAServer(t *testing.T) {
	l := parse(t, "namespace: a\nstore: {driver: postgres, dsn: 'postgres://u@db/x', password: '${TOKEN}', tls: {ca_file: ca.pem}, allow_plaintext: true, max_conns: 3, connect_timeout: 2s}")
	s := l.Store
	if !s.OnServer() || s.DSN.Reveal() != "postgres://u@db/x" || s.Password.Reveal() != canary || s.TLS.CAFile != "ca.pem" || !s.AllowPlaintext || s.MaxConns != 3 || s.ConnectTimeout != 2*time.Second {
		t.Errorf("%+v", s)
	}
	if parse(t, "namespace: a").Store.OnServer() {
		t.Error("the default is on a server")
	}
	l = parse(t, "namespace: a\nstore: {driver: mariadb, dsn: x, password_file: /run/secrets/x}")
	if l.Store.Password.Reveal() != "of x" {
		t.Errorf("%q", l.Store.Password.Reveal())
	}
}

// TestStoreKeysBelongToDrivers: a key that the driver does not have is told, with the
// driver that has it.
func TestStoreKeysBelongToDrivers(t *testing.T) {
	o := options()
	o.CheckStore = func(s configs.Store) error {
		if s.DSN.Reveal() == "good" {
			return nil
		}
		return errors.Join(fmt.Errorf("store: dsn: the address is wrong, password %s", s.Password.Reveal()), errors.New("store: tls.ca_file: no such file"))
	}
	const foreign = "belongs to the driver of a database server: driver sqlite opens a file"
	for _, c := range []struct {
		store string
		want  []string
	}{
		{"{dsn: x.db, password: p, tls: {enabled: true}, allow_plaintext: true, max_conns: 3, connect_timeout: 1s}", []string{
			"c.yaml:2:30: store.password: " + foreign, "c.yaml:2:39: store.tls: " + foreign, "c.yaml:2:72: store.allow_plaintext: " + foreign, "c.yaml:2:89: store.max_conns: " + foreign, "c.yaml:2:109: store.connect_timeout: " + foreign,
		}},
		{"{password_file: /run/secrets/x}", []string{"c.yaml:2:24: store.password: " + foreign}},
		{"{driver: postgres}", []string{"c.yaml:2:9: store: has no dsn: driver postgres wants the address of its server: write dsn: or dsn_file:"}},
		{"{driver: mysql, dsn: good, max_conns: -1, connect_timeout: -1s}", []string{"c.yaml:2:46: store.max_conns: is negative", "c.yaml:2:67: store.connect_timeout: is negative"}},
		{"{driver: postgres, dsn: bad, password: '${TOKEN}', tls: {ca_file: x}}", []string{"c.yaml:2:32: store.dsn: the address is wrong, password ${TOKEN}", "c.yaml:2:74: store.tls.ca_file: no such file"}},
	} {
		_, err := configs.Parse("c.yaml", []byte("namespace: a\nstore: "+c.store), o)
		if err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: got %v", c.store, err)
			continue
		}
		if got := strings.Split(err.Error(), "\n"); !slices.EqualFunc(got, c.want, strings.HasPrefix) {
			t.Errorf("%s\n got %s\nwant %s", c.store, strings.Join(got, "\n     "), strings.Join(c.want, "\n     "))
		}
	}
}

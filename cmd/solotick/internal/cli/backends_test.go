package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/solotick/solotick/configs"
)

func TestLockDriversOfThisProgram(t *testing.T) {
	want := []string{"etcd", "mariadb", "memory", "mysql", "postgres", "redis", "redlock", "sqlite", "zookeeper"}
	if got := lockDrivers(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestBadPartsOfLockDrivers: whatever is wrong with a driver's own part is told by
// the loader, with the line and the name of the field, and without a secret.
func TestBadPartsOfLockDrivers(t *testing.T) {
	const secret = "canary4711"
	for _, c := range []struct{ driver, part, want string }{
		{"redis", "", "c.yaml:2:10: locks.redis.addrs: there are none"},
		{"redis", "adrs: ['127.0.0.1:6379']", `c.yaml:4:5: locks.redis: unknown key "adrs": did you mean addrs?`},
		{"redis", "addrs: [localhost]", `c.yaml:4:12: locks.redis.addrs: "localhost": write it as host:port`},
		{"redis", "addrs: ['a:1', 'b:1']", "c.yaml:4:12: locks.redis.addrs: several; set cluster or sentinel_master"},
		{"redis", "addrs: ['10.0.0.1:6379']\n    password: " + secret, "c.yaml:4:12: locks.redis.addrs: the password would cross the network"},
		{"redis", "addrs: ['127.0.0.1:6379']\n    db: -1", "c.yaml:5:9: locks.redis.db: -1; use 0 and up"},
		{"redis", "addrs: ['127.0.0.1:6379']\n    db: one", "c.yaml:5:9: locks.redis.db: is text: write a whole number"},
		{"redis", "addrs: ['127.0.0.1:6379']\n    prefix: 'a{b}'", `c.yaml:5:13: locks.redis.prefix: prefix "a{b}": use at most`},
		{"redis", "addrs: ['127.0.0.1:6379']\n    password_file: none", "c.yaml:5:20: locks.redis.password_file: none cannot be read"},
		{"redis", "addrs: ['127.0.0.1:6379']\n    tls: {cert_file: c.pem}", "c.yaml:5:11: locks.redis.tls: cert_file and key_file go together"},
		{"redis", "addrs: ['127.0.0.1:6379']\n    tls: {ca_file: none.pem}", "c.yaml:5:20: locks.redis.tls.ca_file: open none.pem: "},
		{"redlock", "addrs: ['127.0.0.1:1', '127.0.0.1:2']", "c.yaml:4:12: locks.redlock.addrs: 2; an odd number of at least 3 is needed"},
		{"redlock", "addrs: [a, b, c]", `c.yaml:4:12: locks.redlock.addrs: "a": write it as host:port`},
		{"redlock", "addrs: ['a:1', 'b:1', 'c:1']\n    password: " + secret, "c.yaml:4:12: locks.redlock.addrs: the password would cross the network"},
		{"etcd", "", "c.yaml:2:10: locks.etcd.endpoints: there is none"},
		{"etcd", "endpoints: ['ftp://a:1']", `c.yaml:4:16: locks.etcd.endpoints: "ftp://a:1": unknown scheme`},
		{"etcd", "endpoints: ['http://u:" + secret + "@a:1']", "c.yaml:4:16: locks.etcd.endpoints: one has a user in it"},
		{"etcd", "endpoints: ['a:1']\n    username: u", "c.yaml:5:15: locks.etcd.username: username and password: one of them is missing"},
		{"etcd", "endpoints: ['a:1']\n    username: u\n    password: " + secret, "c.yaml:4:16: locks.etcd.endpoints: the password would cross the network"},
		{"etcd", "endpoints: ['127.0.0.1:1']\n    prefix: a/", `c.yaml:5:13: locks.etcd.prefix: prefix "a/": it is empty or ends in a slash`},
		{"zookeeper", "", "c.yaml:2:10: locks.zookeeper.servers: there is none"},
		{"zookeeper", "servers: [':1']", "locks.zookeeper.servers: "},
		{"zookeeper", "servers: [a]\n    prefix: nope", "locks.zookeeper.prefix: "},
		{"zookeeper", "servers: [a]\n    session_timeout: -1s", "c.yaml:5:22: locks.zookeeper.session_timeout: -1s is negative"},
		{"zookeeper", "servers: [a]\n    username: u\n    password: " + secret, "locks.zookeeper.servers: "},
		{"postgres", "", "c.yaml:2:10: locks.postgres.dsn: it is empty"},
		{"postgres", "dsn: 'postgres://u:" + secret + "@[::1'", "c.yaml:4:10: locks.postgres.dsn: pgx cannot read it"},
		{"postgres", "dsn: 'postgres://u:" + secret + "@db.example/d'", "c.yaml:4:10: locks.postgres.dsn: the connection to \"db.example\" would be without TLS"},
		{"postgres", "dsn: 'postgres://u@localhost/d'\n    mode: advisry", `c.yaml:5:11: locks.postgres.mode: "advisry" is none`},
		{"postgres", "dsn: 'postgres://u@localhost/d'\n    table_prefix: 'A;'", "c.yaml:5:19: locks.postgres.table_prefix: "},
		{"postgres", "dsn: 'postgres://u@localhost/d'\n    tls: {ca_file: none.pem}", "c.yaml:5:20: locks.postgres.tls.ca_file: open none.pem: "},
		{"mysql", "dsn: 'u:" + secret + "@tcp(db.example:3306)/d'", "c.yaml:4:10: locks.mysql.dsn: the connection to \"db.example\" would be without TLS"},
		{"mysql", "dsn: 'u:" + secret + "@tcp(127.0.0.1:3306)/'", "c.yaml:4:10: locks.mysql.dsn: it names no database"},
		{"mariadb", "dsn: '" + secret + "'", "c.yaml:4:10: locks.mariadb.dsn: the driver cannot read it"},
		{"mariadb", "dsn: 'u@tcp(127.0.0.1:3306)/d'\n    password: " + secret + "\n    connect_timeout: 5", "c.yaml:6:22: locks.mariadb.connect_timeout: 5 has no unit"},
		{"sqlite", "", "c.yaml:2:10: locks.sqlite.dsn: it is empty"},
		{"memory", "size: 1", `c.yaml:4:5: locks.memory: unknown key "size"`},
	} {
		text := "namespace: a\nlocks: { driver: " + c.driver + " }\n"
		if c.part != "" {
			text = "namespace: a\nlocks:\n  " + c.driver + ":\n    " + c.part + "\n  driver: " + c.driver + "\n"
		}
		_, err := configs.Parse("c.yaml", []byte(text), known())
		if err == nil || !strings.HasPrefix(err.Error(), c.want) && !(strings.HasPrefix(err.Error(), "c.yaml:") && strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s\n got %v\nwant %s", text, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%s: it shows the secret: %v", text, err)
		}
	}
}

// TestPartOfAnotherDriverIsLeftAlone: a file may keep the parts of drivers that it
// does not use, also where their variables are not set.
func TestPartOfAnotherDriverIsLeftAlone(t *testing.T) {
	const text = "namespace: a\nlocks: {driver: sqlite, sqlite: {dsn: x.db}, redis: {addrs: ['a:1'], password: '${NO_SUCH_VARIABLE_4711}'}}"
	if _, err := configs.Parse("c.yaml", []byte(text), known()); err != nil {
		t.Error(err)
	}
}

var (
	yamlBlock  = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")
	driverPart = regexp.MustCompile(`(?m)^  # (([a-z]+): \{.*)$`) // that a comment offers
)

// TestDocumentedFilesAreGood: this program takes every file that the documents show,
// and every sample.
func TestDocumentedFilesAreGood(t *testing.T) {
	root := filepath.Join("..", "..", "..", "..")
	drivers := map[string]bool{}
	check := func(name, text string) {
		o := known()
		o.Env = func(string) (string, bool) { return "set to what is long enough", true }
		o.ReadFile = func(string) ([]byte, error) { return []byte("read-by-the-test.db"), nil }
		l, err := configs.Parse(name, []byte(text), o)
		if err != nil {
			t.Errorf("%v, in\n%s", err, text)
			return
		}
		drivers[l.Locks.Driver] = true
	}
	for _, pattern := range []string{"README.md", "docs/*.md", "configs/*.yaml"} {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %v, %v", pattern, names, err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if filepath.Ext(name) == ".yaml" {
				check(name, string(text))
				for _, m := range driverPart.FindAllStringSubmatch(string(text), -1) {
					check(name, "namespace: a\nlocks:\n  driver: "+m[2]+"\n  "+m[1]+"\n")
				}
				continue
			}
			for _, m := range yamlBlock.FindAllStringSubmatch(string(text), -1) {
				check(name, m[1])
			}
		}
	}
	for _, want := range append(lockDrivers(), configs.LocksInStore) {
		if !drivers[want] && want != memoryDriver {
			t.Errorf("no document shows a file with locks.driver %s", want)
		}
	}
}

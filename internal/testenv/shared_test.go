//go:build linux

package testenv_test

import (
	"bufio"
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/internal/testenv"
)

func containsAll(text string, parts ...string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

func replacePassword(dsn string) string {
	return strings.Replace(dsn, "solotick:solotick@", "solotick:wrong@", 1)
}

func TestSharedRedis(t *testing.T) {
	a, b := testenv.SharedRedis(t), testenv.SharedRedis(t)
	if a.Addr != b.Addr || a.DB == b.DB || a.Name == b.Name {
		t.Fatalf("spaces %+v and %+v, want two of one server", a, b)
	}
	ctx := within(t, enough)
	open := func(s testenv.Space) *redis.Client {
		c := redis.NewClient(&redis.Options{Addr: s.Addr, DB: s.DB})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	var gone testenv.Space
	t.Run("one test", func(t *testing.T) {
		gone = testenv.SharedRedis(t)
		if err := open(gone).Set(ctx, "k", "v", 0).Err(); err != nil {
			t.Fatal(err)
		}
	})
	for _, s := range []testenv.Space{a, b, gone} {
		if n, err := open(s).DBSize(ctx).Result(); n != 0 || err != nil {
			t.Errorf("%d keys in the space %+v, %v, want none", n, s, err)
		}
	}
}

func TestSharedSQL(t *testing.T) {
	ctx := within(t, enough)
	for driver, share := range map[string]func(testing.TB) testenv.Space{"pgx": testenv.SharedPostgres, "mysql": testenv.SharedMySQL} {
		t.Run(driver, func(t *testing.T) {
			open := func(s testenv.Space) *sql.DB {
				db, err := sql.Open(driver, s.DSN())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = db.Close() })
				return db
			}
			a, b := share(t), share(t)
			if _, err := open(a).ExecContext(ctx, "CREATE TABLE n (id INT)"); err != nil {
				t.Fatal(err)
			}
			if _, err := open(b).ExecContext(ctx, "SELECT id FROM n"); err == nil {
				t.Error("one test sees the table of another")
			}
			var gone testenv.Space
			t.Run("one test", func(t *testing.T) {
				gone = share(t)
				// A connection that the test left open does not keep its database.
				if err := open(gone).PingContext(ctx); err != nil {
					t.Fatal(err)
				}
			})
			if err := open(gone).PingContext(ctx); err == nil {
				t.Errorf("the database %s is there after its test", gone.Name)
			}
		})
	}
}

func TestSharedEtcdAndZooKeeper(t *testing.T) {
	ctx := within(t, enough)
	etcd, again := testenv.SharedEtcd(t), testenv.SharedEtcd(t)
	if etcd.Addr != again.Addr || etcd.Name == again.Name {
		t.Errorf("spaces %+v and %+v, want two of one server", etcd, again)
	}
	if err := pingEtcd(ctx, etcd.Addr); err != nil {
		t.Error(err)
	}
	if err := pingZooKeeper(ctx, testenv.SharedZooKeeper(t).Addr); err != nil {
		t.Error(err)
	}
}

const childEnv = "SOLOTICK_TESTENV_CHILD"

// child is a test process that is killed: it starts servers, tells their ids and
// folders, and stays.
func child(m *testing.M) {
	if err := os.Unsetenv(childEnv); err != nil {
		panic(err)
	}
	testing.Init()
	os.Args = append(os.Args[:1], "-test.run=^TestChild$")
	childRuns = true
	os.Exit(testenv.Main(m).Run())
}

var childRuns bool

func TestChild(t *testing.T) {
	if !childRuns {
		return // it is the body of the process that TestServersDieWithTheTest kills
	}
	out := bufio.NewWriter(os.Stdout)
	for _, s := range []*testenv.Server{testenv.Redis(t), testenv.ZooKeeper(t), testenv.Postgres(t).Server, testenv.MariaDB(t).Server, testenv.Etcd(t, 1)[0]} {
		for _, pid := range append(testenv.Descendants(s.Pid()), s.Pid()) {
			_, _ = out.WriteString("pid " + strconv.Itoa(pid) + "\n")
		}
		_, _ = out.WriteString("folder " + s.Folder() + "\n")
	}
	_, _ = out.WriteString("ready\n")
	if err := out.Flush(); err != nil {
		t.Fatal(err)
	}
	_, _ = os.Stdin.Read(make([]byte, 1)) // until it is killed
}

func TestServersDieWithTheTest(t *testing.T) {
	cmd := exec.CommandContext(within(t, 2*enough), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []int
	var folders, all []string
	ready := false
	for lines := bufio.NewScanner(out); !ready && lines.Scan(); {
		all = append(all, lines.Text())
		what, value, _ := strings.Cut(lines.Text(), " ")
		switch what {
		case "pid":
			pid, err := strconv.Atoi(value)
			if err != nil {
				t.Error(err)
			}
			pids = append(pids, pid)
		case "folder":
			folders = append(folders, value)
		case "ready":
			ready = true
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	if !ready {
		t.Fatalf("the process printed %q", all)
	}
	awaitGone(t, pids...)

	// What it left in the file system goes when the next process starts a server;
	// what lives stays.
	alive := testenv.SharedPostgres(t)
	testenv.Sweep()
	for _, folder := range folders {
		if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v, want it swept away", folder, err)
		}
	}
	db, err := sql.Open("pgx", alive.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(within(t, enough), "CREATE TABLE n (id INT)"); err != nil {
		t.Errorf("a server that lives was swept: %v", err)
	}
}

func TestPortsAreReserved(t *testing.T) {
	seen := map[int]bool{}
	for range 20 {
		port, reservation, err := testenv.ReservePort()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = reservation.Close() })
		if seen[port] {
			t.Errorf("port %d twice", port)
		}
		seen[port] = true
		if f, err := testenv.LockFile(reservation.Name()); err == nil {
			_ = f.Close()
			t.Errorf("port %d can be reserved again", port)
		}
	}
}

// The pinned module and the tests speak of one version.
func TestEtcdVersion(t *testing.T) {
	text, err := os.ReadFile("etcd/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if want := "go.etcd.io/etcd/server/v3 " + testenv.EtcdVersion; !strings.Contains(string(text), want) {
		t.Errorf("etcd/go.mod does not require %s", want)
	}
}

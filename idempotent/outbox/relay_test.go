package outbox_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/idempotent/inbox"
	"github.com/solotick/solotick/idempotent/outbox"
	"github.com/solotick/solotick/idempotent/redisstream"
	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/internal/sqldialect/postgresdb"
	"github.com/solotick/solotick/internal/testenv"
)

// One works, the others stand by; one that resigns or dies is followed.
func TestOneRelayWorksAtATime(t *testing.T) {
	everywhere(t, func(w *world) {
		a, b := w.relay(outbox.Config{Lease: time.Minute}), w.relay(outbox.Config{Lease: time.Minute})
		w.turn(a)
		w.add(msg("a/1"))
		w.turn(b)
		w.want()
		w.turn(a)
		w.want("a/1")
		a.Resign(w.Context())
		w.add(msg("a/2"))
		w.turn(b)
		w.want("a/1", "a/2")
		if !b.Leads() {
			w.Error("the second does not work though the first has resigned")
		}
		// b dies: its lease ends.
		w.exec("UPDATE solotick_outbox_relay SET until_ms = 1")
		w.add(msg("a/3"))
		w.turn(w.relay(outbox.Config{Lease: time.Minute}))
		w.want("a/1", "a/2", "a/3")
	})
}

// A relay that was frozen among its messages sends no more of them when another has
// taken over.
func TestFrozenRelayStops(t *testing.T) {
	w := newWorld(t)
	frozen, other := w.relay(outbox.Config{Lease: time.Second}), w.relay(outbox.Config{Lease: time.Minute})
	w.add(msgs("a/1", "a/2", "a/3")...)
	w.broker.refuse = func(m outbox.Message) error {
		if m.ID != "a/1" {
			return nil
		}
		w.broker.refuse = nil
		// Longer than its lease; the other finds the row open.
		<-time.After(time.Second)
		w.broker.mu.Unlock()
		defer w.broker.mu.Lock()
		w.turn(other)
		return nil
	}
	w.turn(frozen)
	w.want("a/1", "a/2", "a/3", "a/1")
	if frozen.Leads() {
		t.Error("it does not know that it stands by")
	}
}

func TestRunSendsAndEnds(t *testing.T) {
	w := newWorld(t)
	relay, err := outbox.NewRelay(w.box, outbox.Config{Interval: time.Hour}, outbox.Deps{Publisher: w.broker, Log: slog.New(slog.DiscardHandler)})
	w.must(err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	sent := make(chan struct{}, 10)
	w.broker.lose = func(outbox.Message) error { sent <- struct{}{}; return nil }
	w.add(msg("a/1"))
	go func() { ended <- relay.Run(ctx) }()
	await := func() {
		t.Helper()
		select {
		case <-sent:
		case <-time.After(time.Minute):
			t.Fatal("not sent")
		}
	}
	await()
	w.add(msg("a/2"))
	relay.Wake()
	await()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run = %v", err)
	}
	if n := w.count("state = 2"); n != 2 { // the last mark is waited for
		t.Errorf("%d are marked as sent", n)
	}
	var until int64
	w.must(w.db.Raw("SELECT until_ms FROM solotick_outbox_relay").Scan(&until).Error)
	if until != 0 {
		t.Error("the lease was not given back")
	}
	w.exec("DROP TABLE solotick_outbox")
	if err := relay.Run(t.Context()); err == nil {
		t.Error("a missing table: no error")
	}
}

// warned closes when something is logged as a warning.
type warned struct {
	slog.Handler
	once *sync.Once
	done chan struct{}
}

func (w warned) Enabled(context.Context, slog.Level) bool { return true }

func (w warned) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		w.once.Do(func() { close(w.done) })
	}
	return nil
}

// A database that is away is waited for; what was added meanwhile is sent.
func TestDatabaseThatIsAwayIsWaitedFor(t *testing.T) {
	space := testenv.SharedPostgres(t)
	line := faultproxy.Start(t, space.Addr)
	w := worldOn(t, open(t, postgresdb.Open, space.DSN()))
	behind, err := outbox.New(open(t, postgresdb.Open, space.DSNAt(line.Addr())))
	w.must(err)
	log := warned{slog.DiscardHandler, &sync.Once{}, make(chan struct{})}
	relay, err := outbox.NewRelay(behind, outbox.Config{Interval: 20 * time.Millisecond, Lease: time.Second}, outbox.Deps{Publisher: w.broker, Log: slog.New(log)})
	w.must(err)
	sent := make(chan string, 10)
	w.broker.lose = func(m outbox.Message) error { sent <- m.ID; return nil }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	await := func(want string) {
		t.Helper()
		select {
		case got := <-sent:
			if got != want {
				t.Errorf("sent %s, want %s", got, want)
			}
		case err := <-ended:
			t.Fatalf("Run = %v", err)
		case <-time.After(time.Minute):
			t.Fatalf("%s is not sent", want)
		}
	}
	w.add(msg("a/1"))
	await("a/1")
	for w.count("state = 2") < 1 { // the mark: else it is sent again, as it may be
		<-time.After(10 * time.Millisecond)
	}
	line.Refuse()
	<-log.done
	w.add(msg("a/2"))
	line.Pass()
	await("a/2")
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run = %v", err)
	}
}

const (
	roleEnv = "OUTBOX_TEST_ROLE"
	dsnEnv  = "OUTBOX_TEST_DSN"
	addrEnv = "OUTBOX_TEST_REDIS"

	killLease = 2 * time.Second
)

// dying tells when the broker has the messages, and keeps the answer.
type dying struct{ to outbox.Publisher }

func (d dying) Publish(ctx context.Context, msgs []outbox.Message) []error {
	errs := d.to.Publish(ctx, msgs)
	fmt.Println("published")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	return errs
}

// child is a relay in a process of its own, whose publisher stops after its first call.
func child(string) error {
	db, closer, err := postgresdb.Open(sqldialect.ServerConfig{DSN: secret.New(os.Getenv(dsnEnv))})
	if err != nil {
		return err
	}
	defer func() { _ = closer() }()
	box, err := outbox.New(db)
	if err != nil {
		return err
	}
	host, number, err := redisAt(os.Getenv(addrEnv))
	if err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: host, DB: number})
	defer func() { _ = rdb.Close() }()
	pub, err := redisstream.New(rdb, redisstream.Config{})
	if err != nil {
		return err
	}
	r, err := outbox.NewRelay(box, relayOfKill(), outbox.Deps{Publisher: dying{pub}})
	if err != nil {
		return err
	}
	return r.Run(context.Background())
}

func relayOfKill() outbox.Config {
	return outbox.Config{Lease: killLease, Interval: 50 * time.Millisecond}
}

func redisAt(text string) (host string, db int, err error) {
	for i := range text {
		if text[i] == '/' {
			db, err = strconv.Atoi(text[i+1:])
			return text[:i], db, err
		}
	}
	return "", 0, errors.New("no database")
}

// A relay is killed when the broker has its messages and before they are marked. The
// one that stood by sends them again, and the inbox lets each have one effect.
func TestKilledRelayIsFollowedAndTheEffectIsOnce(t *testing.T) {
	space, stream := testenv.SharedPostgres(t), testenv.SharedRedis(t)
	w := worldOn(t, open(t, postgresdb.Open, space.DSN()))
	in, err := inbox.New(w.db)
	w.must(err)
	w.must(in.Migrate(t.Context()))
	w.exec("CREATE TABLE effects (message TEXT)")
	w.add(msgs("a/1", "a/2", "b/1", "-/1")...)

	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"=relay", dsnEnv+"="+space.DSN(), fmt.Sprintf("%s=%s/%d", addrEnv, stream.Addr, stream.DB))
	cmd.Stderr = os.Stderr
	keep, err := cmd.StdinPipe()
	w.must(err)
	defer func() { _ = keep.Close() }()
	out, err := cmd.StdoutPipe()
	w.must(err)
	w.must(cmd.Start())
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "published\n" {
		t.Fatalf("the first relay says %q, %v", line, err)
	}

	rdb := redis.NewClient(&redis.Options{Addr: stream.Addr, DB: stream.DB})
	defer func() { _ = rdb.Close() }()
	pub, err := redisstream.New(rdb, redisstream.Config{})
	w.must(err)
	var calls atomic.Int64
	second, err := outbox.NewRelay(w.box, relayOfKill(), outbox.Deps{Publisher: counting{pub, &calls}, Log: slog.New(slog.DiscardHandler)})
	w.must(err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- second.Run(ctx) }()
	w.must(cmd.Process.Kill())
	_ = cmd.Wait() // it was killed

	deadline := time.Now().Add(time.Minute)
	for w.count("state = 2") < 4 {
		if time.Now().After(deadline) {
			t.Fatalf("%d of 4 are sent", w.count("state = 2"))
		}
		<-time.After(20 * time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}

	entries, err := rdb.XRange(t.Context(), "orders", "-", "+").Result()
	w.must(err)
	var order []string
	for _, e := range entries {
		m, err := redisstream.Parse(e.Values)
		w.must(err)
		w.must(w.db.Transaction(func(tx *gorm.DB) error {
			first, err := inbox.Once(tx, "test", m.ID)
			if err != nil || !first {
				return err
			}
			order = append(order, m.ID)
			return tx.Exec("INSERT INTO effects VALUES (?)", m.ID).Error
		}))
	}
	// a/2 was not in the first relay's wave: it had to wait for a/1.
	if len(entries) != 7 || calls.Load() == 0 {
		t.Errorf("%d entries in the stream, want 3 of the killed relay and 4", len(entries))
	}
	var rows, distinct int
	w.must(w.db.Raw("SELECT count(*), count(DISTINCT message) FROM effects").Row().Scan(&rows, &distinct))
	if rows != 4 || distinct != 4 {
		t.Errorf("%d effects of %d messages (%v), want 4 and 4", rows, distinct, order)
	}
}

type counting struct {
	outbox.Publisher
	n *atomic.Int64
}

func (c counting) Publish(ctx context.Context, msgs []outbox.Message) []error {
	c.n.Add(1)
	return c.Publisher.Publish(ctx, msgs)
}

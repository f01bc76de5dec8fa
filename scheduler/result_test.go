package scheduler_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/memstore"
)

func TestResultIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		size     int
		fails    error
		state    store.State
		attempts int
		text     string
	}{
		"at the limit":               {size: store.MaxResult, state: store.StateSucceeded, attempts: 1},
		"above it":                   {size: store.MaxResult + 1, state: store.StateFailed, attempts: 1, text: "65537 bytes"},
		"above it, with an error":    {size: 1 << 20, fails: errors.New("no funds"), state: store.StateFailed, attempts: 3, text: "no funds"},
		"above it, and then smaller": {size: -1, state: store.StateSucceeded, attempts: 1},
	} {
		bubble(t, name, func(t *testing.T) {
			calls := 0
			c1 := schedulertest.New(t, schedulertest.Options{Replicas: 1, Jobs: jobs(scheduler.QueueFunc("j", func(_ context.Context, run *scheduler.Run) error {
				calls++
				if c.size < 0 {
					run.SetResult(make([]byte, 1<<20))
					small := []byte("small")
					run.SetResult(small)
					copy(small, "SMALL") // the caller may use its bytes again
					return nil
				}
				run.SetResult(make([]byte, c.size))
				return c.fails
			}, scheduler.Retry(3, time.Second, time.Second)))})
			if _, err := c1.Store.Enqueue(context.Background(), schedulertest.Namespace, []store.NewExecution{{Key: store.Key{Class: store.ClassKey, Job: "j", Name: "a"}}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			row := c1.Rows("j")[0]
			if row.State != c.state || calls != c.attempts {
				t.Errorf("%s after %d calls, want %s after %d", row.State, calls, c.state, c.attempts)
			}
			if !strings.Contains(row.ErrorText, c.text) {
				t.Errorf("the error is %q, want %q in it", row.ErrorText, c.text)
			}
			want := max(c.size, 0)
			switch {
			case c.size < 0:
				want = len("small")
				if string(row.Result) != "small" {
					t.Errorf("the result is %q", row.Result)
				}
			case c.size > store.MaxResult:
				want = 0
			}
			if len(row.Result) != want {
				t.Errorf("the record has %d bytes, want %d", len(row.Result), want)
			}
		})
	}
}

// picky is a store that refuses to record ends whose result begins with "bad", and
// with them the whole transaction, as a database does.
type picky struct {
	store.Store
	mu       sync.Mutex
	recorded map[store.ID]int
	batches  []int
}

func (p *picky) Finish(ctx context.Context, rows []store.Finish) ([]error, error) {
	p.mu.Lock()
	p.batches = append(p.batches, len(rows))
	first := len(p.batches) == 1
	p.mu.Unlock()
	if first { // others come together while it is under way
		if err := sleep(ctx, time.Second); err != nil {
			return nil, err
		}
	}
	for _, f := range rows {
		if bytes.HasPrefix(f.Result, []byte("bad")) {
			return nil, errors.New("this row cannot be stored")
		}
	}
	answers, err := p.Store.Finish(ctx, rows)
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, f := range rows {
		if err == nil && answers[i] == nil {
			p.recorded[f.Ref.ID]++
		}
	}
	return answers, err
}

// TestRefusedEndHarmsNoOther: of the ends that are recorded together the store refuses
// one. The others are recorded nonetheless, and their runs are not made again.
func TestRefusedEndHarmsNoOther(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		p := &picky{Store: memstore.New(), recorded: map[store.ID]int{}}
		s, err := scheduler.New(scheduler.Config{Namespace: "test", Gate: scheduler.GateNone}, scheduler.Deps{Store: p, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		calls := map[string]int{}
		job := func(name, result string, takes time.Duration) scheduler.Job {
			return scheduler.Cron(name, "@every 10m", func(ctx context.Context, run *scheduler.Run) error {
				mu.Lock()
				calls[name]++
				mu.Unlock()
				run.SetResult([]byte(result))
				return sleep(ctx, takes)
			})
		}
		if err := s.Add(job("first", "", time.Second), job("good", "fine", 1500*time.Millisecond), job("wrong", "bad", 1500*time.Millisecond), job("well", "fine", 1500*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if err := s.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(time.Now().Truncate(10 * time.Minute).Add(11 * time.Minute)))
		stopped, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = s.Stop(stopped) // it names the end that was not recorded
		if p.batches[1] != 3 {
			t.Fatalf("the ends came in batches of %v: the test needs three at once", p.batches)
		}
		for _, name := range []string{"first", "good", "well"} {
			if calls[name] != 1 {
				t.Errorf("%s was run %d times", name, calls[name])
			}
		}
		if len(p.recorded) != 3 {
			t.Errorf("%d runs have a recorded end, want 3", len(p.recorded))
		}
		for id, n := range p.recorded {
			if n != 1 {
				t.Errorf("the end of %s was recorded %d times", id, n)
			}
		}
	})
}

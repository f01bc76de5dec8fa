package hint_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/internal/hint"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source counts how often it has listened, and how many listen now.
func source() (s *hint.Source, times, now *atomic.Int64) {
	times, now = new(atomic.Int64), new(atomic.Int64)
	return &hint.Source{Linger: time.Second, Listen: func(ctx context.Context) {
		times.Add(1)
		if now.Add(1) > 1 {
			panic("two listen at a time")
		}
		<-ctx.Done()
		<-time.After(time.Millisecond)
		now.Add(-1)
	}}, times, now
}

func add(t *testing.T, s *hint.Source, key string) (told func() bool, stop func()) {
	t.Helper()
	c, stop, _, err := s.Add(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return func() bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}, stop
}

func TestOnlyThoseWhoWaitForTheKeyAreTold(t *testing.T) {
	s, _, _ := source()
	defer s.Close()
	a, stopA := add(t, s, "a")
	again, stopAgain := add(t, s, "a")
	b, stopB := add(t, s, "b")
	defer stopAgain()
	s.Tell("a")
	s.Tell("a") // there is room for one
	if !a() || a() || !again() || b() {
		t.Error("a hint about a went elsewhere, or came twice")
	}
	s.TellAll()
	if !a() || !again() || !b() {
		t.Error("a hint to everybody did not reach everybody")
	}
	stopA()
	stopA() // twice does no harm to the other
	stopB()
	s.Tell("a")
	if a() || !again() {
		t.Error("to stop ended another's hints and not one's own")
	}
	if keys := s.Keys(); !slices.Equal(keys, []string{"a"}) || !s.Waits("a") || s.Waits("b") {
		t.Errorf("waited for: %q", keys)
	}
}

func TestListensWhileSomebodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, times, now := source()
		check := func(when string, wantTimes, wantNow int64) {
			t.Helper()
			synctest.Wait()
			if times.Load() != wantTimes || now.Load() != wantNow {
				t.Errorf("%s: listened %d times, %d now; want %d and %d", when, times.Load(), now.Load(), wantTimes, wantNow)
			}
		}
		check("before anybody waits", 0, 0)
		_, first := add(t, s, "a")
		_, second := add(t, s, "b")
		check("while two wait", 1, 1)
		first()
		time.Sleep(time.Hour)
		check("while one waits", 1, 1)
		second()
		time.Sleep(s.Linger / 2)
		_, third := add(t, s, "a")
		time.Sleep(time.Hour)
		check("who comes soon finds it listening", 1, 1)
		third()
		time.Sleep(s.Linger - 1)
		check("shortly after the last", 1, 1)
		time.Sleep(time.Microsecond)
		_, fourth := add(t, s, "a") // while the one before ends
		time.Sleep(time.Minute)
		check("who comes later has it listen anew", 2, 1)
		s.Close()
		s.Close()
		check("closed", 2, 0)
		fourth()
		if _, _, _, err := s.Add(t.Context(), "a"); !errors.Is(err, hint.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// The listening outlives the call that began it.
func TestListeningOutlivesTheContextOfAdd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, now := source()
		defer s.Close()
		ctx, cancel := context.WithCancel(t.Context())
		if _, _, started, err := s.Add(ctx, "a"); err != nil || !started {
			t.Fatal(started, err)
		}
		cancel()
		time.Sleep(time.Hour)
		synctest.Wait()
		if now.Load() != 1 {
			t.Error("it does not listen any more")
		}
	})
}

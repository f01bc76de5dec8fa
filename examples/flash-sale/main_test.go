package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/internal/testenv"
)

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		main()
		return
	}
	// GORM's cache of prepared statements has a goroutine that nothing ends.
	goleak.VerifyTestMain(testenv.Main(m), goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

// small is a sale that takes a second or two; SOLOTICK_SOAK makes it the whole one.
func small(t *testing.T, db string) Setup {
	t.Helper()
	s := Setup{DB: db, Items: 20, Requests: 360, Repeats: 2, Processes: 3, Callers: 4, Lock: true, Update: "conditional", Key: true}
	if os.Getenv("SOLOTICK_SOAK") != "" {
		s.Items, s.Requests, s.Callers = 100, 10000, 8
	}
	switch db {
	case "sqlite":
		s.DSN = filepath.Join(t.TempDir(), "shop.db")
	case "postgres":
		s.DSN = testenv.SharedPostgres(t).DSN()
	case "mariadb":
		s.DSN = testenv.SharedMySQL(t).DSN()
	}
	if err := s.check(); err != nil {
		t.Fatal(err)
	}
	return s
}

func sale(t *testing.T, s Setup) Result {
	t.Helper()
	r, err := sell(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	var told strings.Builder
	if err := table(&told, []Result{r}); err != nil {
		t.Error(err)
	}
	t.Log("\n" + told.String())
	return r
}

// right checks a sale that is protected.
func right(t *testing.T, s Setup) {
	t.Helper()
	if r := sale(t, s); r.Sold != s.Items || r.Oversold != 0 || r.Lowest != 0 || r.Left != 0 || r.Twice != 0 || r.Differing != 0 || r.Unanswered != 0 || broken([]Result{r}) != nil {
		t.Errorf("%+v: %v", r, broken([]Result{r}))
	}
}

func TestProtectedSaleIsRight(t *testing.T) {
	for _, db := range []string{"sqlite", "postgres", "mariadb"} {
		t.Run(db, func(t *testing.T) {
			all := small(t, db)
			right(t, all)
			unlocked := all
			unlocked.Lock, unlocked.Update = false, "swap"
			right(t, unlocked) // the lock spares conflicts; nothing depends on it
		})
	}
}

// A process that is frozen with the lock in its hands harms nobody when it wakes.
func TestFrozenProcessHarmsNobody(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("freezing a process needs Linux")
	}
	t.Parallel() // most of it is waiting for a lease to end
	s := small(t, "sqlite")
	s.Freeze = true
	right(t, s)
}

// What each protection prevents happens without it, and is found.
func TestDamageWithoutProtection(t *testing.T) {
	for _, db := range []string{"sqlite", "postgres", "mariadb"} {
		t.Run(db, func(t *testing.T) {
			s := small(t, db)
			s.Lock, s.Update, s.Key = false, "blind", false
			r := sale(t, s)
			if r.Oversold == 0 || r.Differing == 0 || r.Unanswered != 0 {
				t.Errorf("without any protection: %+v", r)
			}
		})
	}
	t.Run("without a key", func(t *testing.T) {
		s := small(t, "sqlite")
		s.Key = false
		if r := sale(t, s); r.Sold != s.Items || r.Differing == 0 {
			t.Errorf("%+v, want the stock right and answers wrong", r)
		}
	})
	t.Run("without lock and update", func(t *testing.T) {
		s := small(t, "sqlite")
		s.Lock, s.Update = false, "blind"
		if r := sale(t, s); r.Oversold == 0 || r.Differing != 0 || r.Twice != 0 {
			t.Errorf("%+v, want answers right and the stock wrong", r)
		}
	})
	t.Run("lock alone", func(t *testing.T) {
		if runtime.GOOS != "linux" {
			t.Skip("freezing a process needs Linux")
		}
		t.Parallel()
		s := small(t, "sqlite")
		s.Update, s.Key, s.Freeze = "blind", false, true
		if r := sale(t, s); r.Oversold == 0 {
			t.Errorf("%+v, want items sold twice by the one that was frozen", r)
		}
	})
}

func TestCommandLine(t *testing.T) {
	var out strings.Builder
	if err := start(t.Context(), []string{"-items", "2", "-requests", "32", "-callers", "2", "-lock=false", "-json"}, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	var results []Result
	if err := json.Unmarshal([]byte(out.String()), &results); err != nil || len(results) != 1 || results[0].Sold != 2 || results[0].DB != "sqlite" || results[0].Lock {
		t.Errorf("%v\n%s", err, out.String())
	}
	if strings.Contains(out.String(), "shop.db") {
		t.Errorf("it prints where it connects to:\n%s", out.String())
	}
	for want, args := range map[string][]string{
		"-db \"oracle\"":          {"-db", "oracle"},
		"FLASH_SALE_DSN is empty": {"-db", "postgres"},
		"-update \"\"":            {"-update", ""},
		"-requests 10":            {"-requests", "10"},
		"use 2 items":             {"-processes", "1"},
	} {
		if err := start(t.Context(), args, &out); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	if all := oneByOne(Setup{}); len(all) != 7 || all[0].Update != "conditional" || !all[0].Lock || !all[0].Key {
		t.Errorf("%+v", all)
	}
}

// TestEndsWithItsContext: no worker is left behind.
func TestEndsWithItsContext(t *testing.T) {
	s := small(t, "sqlite")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sell(ctx, s); err == nil {
		t.Error("no error")
	}
}

package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/fx"
	"go.uber.org/goleak"
	"gorm.io/gorm"

	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

func TestMain(m *testing.M) {
	if os.Getenv("WORKER_FX_IS_MAIN") != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

func TestCompositionIsComplete(t *testing.T) {
	if err := fx.ValidateApp(worker("unused", io.Discard)); err != nil {
		t.Error(err)
	}
}

// TestWorkerSellsOncePerTickAndStopsCleanly runs the program as a process, until it
// has reported twice.
func TestWorkerSellsOncePerTickAndStopsCleanly(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shop.db")
	cmd := exec.CommandContext(t.Context(), os.Args[0], file)
	cmd.Env = append(os.Environ(), "WORKER_FX_IS_MAIN=1")
	cmd.Stderr = t.Output()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	hang := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer hang.Stop()
	reports := 0
	for s := bufio.NewScanner(stdout); s.Scan(); {
		if reports++; reports == 2 {
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("after %d reports and Ctrl-C: %v", reports, err)
	}

	db := open(t, file)
	var sales, ticks, written int64
	check(t, db.Model(&Sale{}).Count(&sales).Error)
	check(t, db.Model(&Sale{}).Distinct("tick").Count(&ticks).Error)
	check(t, db.Model(&Report{}).Count(&written).Error)
	if sales < 3 || sales != ticks || written < 2 {
		t.Errorf("%d sales in %d ticks, %d reports", sales, ticks, written)
	}
	st, err := gormstore.New(db)
	check(t, err)
	rows, err := st.List(t.Context(), store.Filter{Namespace: "shop"})
	check(t, err)
	ran := map[string]int64{}
	for _, e := range rows {
		switch e.State {
		case store.StateSucceeded:
			ran[e.Key.Job]++
		case store.StateRunning:
			t.Errorf("%s was left running", e.Key)
		default:
		}
	}
	if ran["sale"] != sales || ran["report"] != written {
		t.Errorf("the store says %v, the tables have %d sales and %d reports", ran, sales, written)
	}
}

func open(t *testing.T, file string) *gorm.DB {
	t.Helper()
	db, err := sqlitedb.Open(file, nil)
	check(t, err)
	t.Cleanup(func() { check(t, sqlitedb.Close(db)) })
	return db
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

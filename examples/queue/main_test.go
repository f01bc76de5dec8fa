package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && strings.HasSuffix(os.Args[1], "worker") {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// TestStory tells it twice on one file and looks at the tables.
func TestStory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "queue.db")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var first, again strings.Builder
	if err := tell(ctx, file, &first); err != nil {
		t.Fatalf("%v\n%s", err, first.String())
	}
	for _, want := range []string{
		"order 1: job enqueued\norder 2: job enqueued\norder 1: job duplicate\norder 3: rolled back",
		"worker 1: died with an invoice written and not committed (signal: killed); invoices: 0\n",
		"invoice for order 1, by attempt 2\n",
	} {
		if !strings.Contains(first.String(), want) {
			t.Errorf("the story lacks %q:\n%s", want, first.String())
		}
	}
	if err := tell(ctx, file, &again); err != nil {
		t.Fatalf("%v\n%s", err, again.String())
	}
	if strings.Contains(again.String(), "enqueued") {
		t.Errorf("a job was put twice:\n%s", again.String())
	}

	db, st, err := open(ctx, file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := sqlitedb.Close(db); err != nil {
			t.Error(err)
		}
	}()
	var invoices []Invoice
	if err := db.Order("order_id").Find(&invoices).Error; err != nil {
		t.Fatal(err)
	}
	if len(invoices) != 2 || invoices[0].OrderID != 1 || invoices[1].OrderID != 2 {
		t.Errorf("invoices %+v, want one for each of the orders 1 and 2", invoices)
	}
	jobs, err := st.List(ctx, store.Filter{Namespace: namespace})
	if err != nil {
		t.Fatal(err)
	}
	if len(jobs) != 2 || jobs[0].State != store.StateSucceeded || jobs[1].State != store.StateSucceeded {
		t.Errorf("jobs %+v, want two that succeeded", jobs)
	}
}

// TestStoryEndsWithItsContext, and with it the worker that was started.
func TestStoryEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := tell(ctx, filepath.Join(t.TempDir(), "queue.db"), &stopper{cancel: cancel})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// stopper cancels when worker 2 has been started.
type stopper struct{ cancel func() }

func (s *stopper) Write(b []byte) (int, error) {
	if strings.HasPrefix(string(b), "worker 2") {
		s.cancel()
	}
	return len(b), nil
}

package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStory(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var told strings.Builder
	if err := tell(ctx, &told); err != nil {
		t.Fatalf("%v\n%s", err, told.String())
	}
	for _, want := range []string{
		"request r-1: order 1 is placed\nrequest r-2: order 2 is placed\nrequest r-1: came before\nrequest r-3: refused",
		"billing: has written an invoice, and its answer is lost\n",
		"billing: this message came before\n",
		"3 deliveries, 2 invoices\ninvoice for order 1: 4200 cents\ninvoice for order 2: 1000 cents\n",
	} {
		if !strings.Contains(told.String(), want) {
			t.Errorf("the story lacks %q:\n%s", want, told.String())
		}
	}
}

func TestStoryEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tell(ctx, &strings.Builder{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

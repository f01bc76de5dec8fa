package driver_test

import (
	"errors"
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/locks/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTokensDiffer(t *testing.T) {
	seen := make(map[driver.Token]bool)
	for range 10_000 {
		tok := driver.NewToken()
		if seen[tok] || tok == (driver.Token{}) || len(tok.String()) != 32 {
			t.Fatalf("token %v came twice, is zero, or is not 32 digits", tok)
		}
		seen[tok] = true
	}
}

func TestNotApplied(t *testing.T) {
	refused := errors.New("refused")
	err := fmt.Errorf("dial: %w", driver.NotApplied(refused))
	if !driver.IsNotApplied(err) || !errors.Is(err, refused) || err.Error() != "dial: refused" {
		t.Errorf("the mark is lost, or in the way: %v", err)
	}
	if driver.IsNotApplied(refused) || driver.IsNotApplied(nil) || driver.NotApplied(nil) != nil {
		t.Error("an unmarked error counts as not applied")
	}
}

package bench

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSpread(t *testing.T) {
	if got, want := SpreadOf([]float64{5, 1, 4, 2, 3}), (Spread{3, 2, 4}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := SpreadOf(Ratios([]float64{2, 9}, []float64{4, 3})); got.Median != 3 || got.Low != 0.5 {
		t.Errorf("ratios %+v", got)
	}
}

func TestAlternate(t *testing.T) {
	var order strings.Builder
	err := Alternate(2, 2, func(round, contender int) error {
		fmt.Fprint(&order, round, contender, " ")
		return nil
	})
	if got := order.String(); err != nil || got != "0 0 0 1 1 1 1 0 2 0 2 1 " {
		t.Errorf("order %q, %v", got, err)
	}
}

// A missing server ends the program with its reason.
func TestHostEnds(t *testing.T) {
	cleaned := false
	missing := func() (err error) {
		h := NewHost(io.Discard)
		defer h.End(&err)
		h.Cleanup(func() { cleaned = true })
		h.Skip("no server")
		return nil
	}
	if err := missing(); err == nil || err.Error() != "no server" || !cleaned {
		t.Errorf("ended with %v, cleaned: %v", err, cleaned)
	}
}

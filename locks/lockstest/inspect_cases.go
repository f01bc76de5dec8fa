package lockstest

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/solotick/solotick/locks/driver"
)

func inspects(b *bench) {
	d, other := b.driver(), b.driver()
	i, ok := driver.As[driver.Inspector](other)
	if !ok {
		b.Skip("the driver cannot inspect")
	}
	ctx := b.within(b.patience())
	if _, err := i.Inspect(ctx, b.key("free")); !errors.Is(err, driver.ErrFree) {
		b.Errorf("Inspect of a free key = %v", err)
	}
	var holds []driver.Hold
	for _, name := range []string{"c", "a", "b", "B", "a%", "a_"} {
		holds = append(holds, b.grant(d, b.lasting(b.key(name))))
	}
	// Some are over, and must not be shown.
	over := b.grant(d, b.request(b.key("over")))
	b.wantReleased(d, over, driver.ReleasedOK)

	got, err := i.Inspect(ctx, holds[0].Key)
	if err != nil || got.Key != holds[0].Key || got.Label != holds[0].Label || got.Fence != holds[0].Fence || got.Remaining > holds[0].TTL*5/4 {
		b.Errorf("Inspect = %+v, %v; want %+v", got, err, holds[0])
	}
	list := func(prefix string, limit int) (keys []string) {
		hs, err := i.List(ctx, prefix, limit)
		if err != nil {
			b.Fatalf("List: %v", err)
		}
		for _, h := range hs {
			keys = append(keys, strings.TrimPrefix(h.Key, b.prefix()))
		}
		return keys
	}
	prefix := b.prefix()
	wantList := func(prefix string, limit int, want ...string) {
		b.Helper()
		if got := list(prefix, limit); !slices.Equal(got, want) {
			b.Errorf("List(%q, %d) = %q, want %q", prefix, limit, got, want)
		}
	}
	wantList(prefix, 100, "B", "a", "a%25", "a_", "b", "c")
	wantList(prefix, 2, "B", "a")
	wantList(prefix+"a", 100, "a", "a%25", "a_")
	wantList(prefix+"a_", 100, "a_")
	wantList(prefix+"z", 100)

	if s, ok := driver.As[driver.Surveyor](other); ok {
		keys := []string{b.key("free"), over.Key}
		want := map[string]int64{}
		for _, h := range holds {
			keys, want[h.Key] = append(keys, h.Key), h.Fence
		}
		hs, err := s.Survey(ctx, keys)
		got := map[string]int64{}
		for _, h := range hs {
			if got[h.Key] = h.Fence; h.Label != holds[0].Label {
				b.Errorf("Survey shows %+v, want the label %q", h, holds[0].Label)
			}
		}
		if err != nil || len(hs) != len(holds) || !maps.Equal(got, want) {
			b.Errorf("Survey = %v, %v; want %v", got, err, want)
		}
	}

	if out, err := i.ForceRelease(ctx, holds[0].Key); err != nil || out != driver.ReleasedOK {
		b.Errorf("ForceRelease = %v, %v", out, err)
	}
	if out, err := i.ForceRelease(ctx, holds[0].Key); err != nil || out != driver.ReleasedGone {
		b.Errorf("second ForceRelease = %v, %v", out, err)
	}
	b.wantRenewal(d, holds[0], driver.ErrNotOurs)
	b.wantReleased(d, holds[0], driver.ReleasedGone)
	if next := b.grant(other, b.request(holds[0].Key)); next.Fence <= holds[0].Fence {
		b.Errorf("fence went from %d to %d over a forced release", holds[0].Fence, next.Fence)
	}
	b.wantRenewal(d, holds[1], nil) // the others are as they were
}

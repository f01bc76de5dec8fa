package outbox

import (
	"context"
	"time"

	"github.com/solotick/solotick/store"
)

// Term lets a test make the turns of a relay one by one.
type Term struct{ t *term }

// NewTerm is a Run that has not begun.
func (r *Relay) NewTerm() *Term { return &Term{&term{Relay: r, owner: store.NewOwner()}} }

// Turn is one look; it answers how long Run would wait.
func (t *Term) Turn(ctx context.Context) (time.Duration, error) { return t.t.turn(ctx) }

// Resign gives the lease back.
func (t *Term) Resign(ctx context.Context) { t.t.resign(ctx) }

// Leads reports whether the last turn had the lease.
func (t *Term) Leads() bool { return t.t.led }

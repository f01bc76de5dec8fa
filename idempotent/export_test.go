package idempotent

import "time"

// SetPatience shortens the bounds of retries and of reading back.
func (g *Guard) SetPatience(d time.Duration) { g.patience = d }

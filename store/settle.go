package store

import "fmt"

// Check refuses a settlement of the job that its store must not write: one that
// reaches outside of (Seen, To], or speaks of another job or another state than a
// tick that did not run can have. A To of 0 must have been put in before.
func (q SettleJob) Check(what Settlement) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%q in (%s, %s]: %s", q.Job, q.Seen, q.To, fmt.Sprintf(format, args...))
	}
	if what.To < q.Seen || what.To > q.To {
		return bad("To is %s: it must lie inside, or be the beginning", what.To)
	}
	inside := func(t Millis) bool { return q.Seen < t && t <= what.To }
	for _, t := range what.Ticks {
		switch {
		case t.Key.Class != ClassCron || t.Key.Job != q.Job:
			return bad("%s is not a tick of the job", t.Key)
		case !inside(t.Key.Tick):
			return bad("tick %s lies outside (to %s)", t.Key.Tick, what.To)
		case t.State != StatePending && t.State != StateSkipped && t.State != StateMissed:
			return bad("tick %s: State is %v: use pending, skipped or missed", t.Key.Tick, t.State)
		}
	}
	for _, g := range what.Ranges {
		switch {
		case g.From > g.To || !inside(g.From) || !inside(g.To):
			return bad("range %s to %s lies outside (to %s)", g.From, g.To, what.To)
		case g.State != StateSkipped && g.State != StateMissed:
			return bad("range %s: State is %v: use skipped or missed", g.From, g.State)
		case g.Count < 1:
			return bad("range %s: Count is %d: count its ticks", g.From, g.Count)
		}
	}
	return nil
}

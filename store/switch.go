package store

import "context"

// SwitchChange is one change of the degradation switch, as the audit keeps it.
type SwitchChange struct {
	ID      int64  // given by the store; later changes have higher ones
	At      Millis // given by the store
	Fleet   bool   // for all processes of the namespace, as opposed to Process only
	Process string // label of the process that it was made by
	Source  string // what way: file, code, admin, cli, centre, expiry
	By      string // who
	Reason  string // why
	From    string // setting before, JSON; empty for none
	To      string // setting after, JSON; empty for none
	Until   Millis // when it ends by itself; 0 when it is cleared

	// Token names the change: a repeat with the same one, after an answer that was lost,
	// is answered with what the first became and appends nothing. Zero: one is drawn.
	Token ID
}

// Switchboard keeps changes of the degradation switch. A store that has none keeps
// no audit, and cannot be the place that turns a fleet. Changes are never altered.
type Switchboard interface {
	// ThrowSwitch appends a change and returns it with ID, At and Token.
	ThrowSwitch(ctx context.Context, namespace string, c SwitchChange) (SwitchChange, error)
	// SwitchChanges returns at most limit changes, the newest first, and the time of the
	// store; with fleet only those for all processes, of which the first is in force.
	SwitchChanges(ctx context.Context, namespace string, fleet bool, limit int) ([]SwitchChange, Millis, error)
}

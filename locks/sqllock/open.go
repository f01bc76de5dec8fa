package sqllock

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/locks/driver"
)

// Mode is how a key is held.
type Mode string

// The modes.
const (
	ModeLease    Mode = "lease"    // a row with an end: [Driver]; the default
	ModeAdvisory Mode = "advisory" // a session lock beside the row: [Advisory]
	ModeRow      Mode = "row"      // a transaction that has locked the row: [Row]
)

// Settings are what the configurations of all databases have.
type Settings struct {
	Mode        Mode
	TablePrefix string
	Pooled      bool // see [Pooled]
}

// Validate reports the first setting that cannot work.
func (s Settings) Validate() error {
	switch s.Mode {
	case "", ModeLease, ModeAdvisory, ModeRow:
	default:
		return fmt.Errorf("sqllock: mode: %q is none: use %s, %s or %s", s.Mode, ModeLease, ModeAdvisory, ModeRow)
	}
	if s.Pooled && s.Mode == ModeAdvisory {
		return errors.New("sqllock: pooled: session locks need a connection of their own: use mode lease or row, or connect without the pooler")
	}
	if s.TablePrefix != "" {
		if err := sqldialect.CheckPrefix(s.TablePrefix); err != nil {
			return fmt.Errorf("sqllock: table_prefix: %w", err)
		}
	}
	return nil
}

// Backend is a driver of any mode.
type Backend interface {
	driver.Driver
	driver.Partial
	driver.Inspector
	driver.Limiter
	Migrate(ctx context.Context) error
	// Channel is the name under which PostgreSQL notifies of free keys.
	Channel() string
	Close() error
}

// OpenBackend returns the driver of the settings on an open database, which
// closer closes with it.
func OpenBackend(db *gorm.DB, s Settings, closer func() error) (Backend, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	opts := []Option{WithPrefix(s.TablePrefix)}
	if s.Pooled {
		opts = append(opts, Pooled())
	}
	switch s.Mode {
	case ModeAdvisory:
		a, err := NewAdvisory(db, opts...)
		if err != nil {
			return nil, err
		}
		return &ownedAdvisory{a, closer}, nil
	case ModeRow:
		r, err := NewRow(db, opts...)
		if err != nil {
			return nil, err
		}
		return &ownedRow{r, closer}, nil
	default:
		d, err := NewDriver(db, opts...)
		if err != nil {
			return nil, err
		}
		return &owned{d, closer}, nil
	}
}

// Channel is the name under which PostgreSQL notifies of keys that were freed,
// with the key as payload.
func (r *rows) Channel() string { return r.channel }

// owned is a driver that closes its database.
type owned struct {
	*Driver
	closer func() error
}

// Close implements io.Closer.
func (o *owned) Close() error {
	if err := o.Driver.Close(); err != nil {
		return err
	}
	return o.closer()
}

type ownedAdvisory struct {
	*Advisory
	closer func() error
}

// Close implements io.Closer.
func (o *ownedAdvisory) Close() error {
	if err := o.Advisory.Close(); err != nil {
		return err
	}
	return o.closer()
}

type ownedRow struct {
	*Row
	closer func() error
}

// Close implements io.Closer.
func (o *ownedRow) Close() error {
	if err := o.Row.Close(); err != nil {
		return err
	}
	return o.closer()
}

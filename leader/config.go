package leader

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// Config is what an operator writes. The zero value works.
type Config struct {
	// TTL is how long a term lasts at the backend when nothing is heard from its
	// leader, and so how soon a dead leader is replaced. Default: the locker's own
	// for FromLocks, 10s for New.
	TTL time.Duration `yaml:"ttl"`
	// Label tells people which process leads. It never decides anything. Default
	// host:pid.
	Label string `yaml:"label"`
	// Grace is how long a leader that resigns or stops keeps the term at the backend
	// for work that has been told to end and has not ended yet (contexts made by
	// Term.Context whose cancel was not called). Default 5s; -1ns for no grace.
	Grace time.Duration `yaml:"grace"`
	// StandBack is how long the elector does not campaign after Resign, so that
	// another wins. With no other candidate nobody leads for that time. Default 5s.
	StandBack time.Duration `yaml:"stand_back"`
	// Priority, 1 to 9, lets a preferred process have the lead back: while one with a
	// higher number runs, the others do not campaign, and a leader among them hands over,
	// at a moment when its work has ended. Every process of the election must have one,
	// and looks for higher ones once a second, which is a request. Default 0: all are
	// alike. Only over FromLocks.
	Priority int `yaml:"priority"`
	// Poll is how often a candidate looks whether the term is free, where the backend
	// does not push: how late it follows a leader that resigns. Each look is a
	// request. Default two fifths of the TTL, at most 4s.
	Poll time.Duration `yaml:"poll"`
	// RequestTimeout bounds the request that gives a term back and each look at who
	// leads. Default 2s.
	RequestTimeout time.Duration `yaml:"request_timeout"`
	// ObserveInterval is how often Observe looks at who leads, jittered by 10 %.
	// Default 1s.
	ObserveInterval time.Duration `yaml:"observe_interval"`
}

const minInterval = 10 * time.Millisecond

func (c Config) withDefaults() Config {
	if c.Label == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		c.Label = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	def := func(field *time.Duration, value time.Duration) {
		if *field == 0 {
			*field = value
		}
	}
	def(&c.Grace, 5*time.Second)
	def(&c.StandBack, 5*time.Second)
	def(&c.RequestTimeout, 2*time.Second)
	def(&c.ObserveInterval, time.Second)
	c.Grace = max(c.Grace, 0)
	return c
}

// Validate reports every field that cannot work, and what would.
func (c Config) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("leader: %s: %s", field, fmt.Sprintf(format, args...)))
	}
	if c.TTL < 0 {
		bad("ttl", "%v is negative: leave it out for the default", c.TTL)
	}
	if c.Poll < 0 {
		bad("poll", "%v is negative: leave it out for the default", c.Poll)
	}
	if c.StandBack < 0 {
		bad("stand_back", "%v is negative: write 1ms to campaign again at once", c.StandBack)
	}
	if c.Priority < 0 || c.Priority > maxPriority {
		bad("priority", "%d is not in 0 to %d", c.Priority, maxPriority)
	}
	c = c.withDefaults()
	if strings.ContainsAny(c.Label, "\r\n\x00") {
		bad("label", "%q has a line break or NUL in it: use one printable line", c.Label)
	}
	if c.RequestTimeout < minInterval {
		bad("request_timeout", "%v is below %v", c.RequestTimeout, minInterval)
	}
	if c.ObserveInterval < minInterval {
		bad("observe_interval", "%v is below %v", c.ObserveInterval, minInterval)
	}
	return errors.Join(errs...)
}

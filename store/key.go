package store

import (
	"fmt"
	"strconv"
)

// Class tells what brought a run about. The ledger and the settled watermark
// count class cron only.
type Class int8

// The classes of runs.
const (
	ClassCron     Class = iota + 1 // a tick of a schedule
	ClassManual                    // asked for by a person, now
	ClassBackfill                  // asked for by a person, for past ticks
	ClassKey                       // a queue job, or a command run once per key
)

var classNames = map[Class]string{ClassCron: "cron", ClassManual: "manual", ClassBackfill: "backfill", ClassKey: "key"}

// String names the class.
func (c Class) String() string {
	if s, ok := classNames[c]; ok {
		return s
	}
	return "Class(" + strconv.Itoa(int(c)) + ")"
}

// Key is what makes a run unique within its namespace. The same bytes on every
// replica give the same run.
type Key struct {
	Class   Class
	Job     string // job name, or kind of a queue job
	Tick    Millis // scheduled instant; class cron and backfill
	Name    string // idempotency key; class key
	Shard   int    // 0 unless the job is sharded
	Request string // id of the request; class manual and backfill
}

// Hash is the unique run hash of the key.
func (k Key) Hash() Hash {
	return HashOf("run", k.Class.String(), k.Job, strconv.FormatInt(int64(k.Tick), 10), k.Name, strconv.Itoa(k.Shard), k.Request)
}

// String is the key for people.
func (k Key) String() string {
	switch k.Class {
	case ClassCron, ClassBackfill:
		return fmt.Sprintf("%s@%s", k.Job, k.Tick)
	case ClassManual:
		return fmt.Sprintf("%s#%s", k.Job, k.Request)
	case ClassKey:
	}
	return fmt.Sprintf("%s/%s", k.Job, k.Name)
}

// ActiveCron is the active key of a scheduled job: at most one running row has
// it, whatever class the run is of. Slot is 0 unless the overlap policy allows
// several.
func ActiveCron(job string, slot int) Hash { return HashOf("active", "cron", job, strconv.Itoa(slot)) }

// ActiveQueue is the active key of a queue job with a lock key.
func ActiveQueue(kind, lockKey string) Hash { return HashOf("active", "queue", kind, lockKey) }

package configs

import (
	"reflect"

	"github.com/solotick/solotick/configs/strictyaml"
)

// Changes lists the top-level keys in which two configurations differ, in the
// order of the file.
type Changes struct {
	Hot     []string // take effect at once: degradation
	Restart []string // need a restart
}

// Diff compares what two files say, with defaults, variables and secret files
// filled in. Comments, order of keys and anchors make no difference.
func Diff(old, updated *Loaded) Changes {
	var c Changes
	restart := func(key string, differs bool) {
		if differs {
			c.Restart = append(c.Restart, key)
		}
	}
	restart("namespace", old.Namespace != updated.Namespace)
	restart("store", !reflect.DeepEqual(old.Store, updated.Store))
	restart("locks", !sameLocks(old.Locks, updated.Locks))
	restart("scheduler", !reflect.DeepEqual(old.Scheduler, updated.Scheduler))
	if !reflect.DeepEqual(old.Degradation.Degradation, updated.Degradation.Degradation) {
		c.Hot = append(c.Hot, "degradation")
	}
	restart("degradation.centre", !sameCentre(old, updated))
	restart("jobs", !reflect.DeepEqual(old.Jobs, updated.Jobs))
	restart("admin", !reflect.DeepEqual(old.Admin, updated.Admin))
	restart("log", old.Log != updated.Log)
	return c
}

// sameLocks compares the chosen driver's part only: the others have no effect.
func sameLocks(a, b Locks) bool {
	same := a.Sections[a.Driver].Equal(b.Sections[b.Driver])
	a.Sections, b.Sections = nil, nil
	return same && reflect.DeepEqual(a, b)
}

func lockKeys() []string { return strictyaml.Keys(reflect.TypeFor[Locks]()) }

package configs

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/solotick/solotick/configs/strictyaml"
	"github.com/solotick/solotick/scheduler"
)

// Changes lists the keys in which two configurations differ, in the order of the
// file, such as scheduler.concurrency, and jobs by name, as in "jobs.backup (added)".
// Values are not shown.
type Changes struct {
	Hot     []string // take effect at once
	Restart []string // need a restart
}

// Diff compares what two files say, with defaults, variables and secret files
// filled in. Comments, order of keys and of jobs, and anchors make no difference.
func Diff(old, updated *Loaded) Changes {
	var c Changes
	for _, key := range differing("", reflect.ValueOf(old.file()), reflect.ValueOf(updated.file())) {
		if isLive(key) {
			c.Hot = append(c.Hot, key)
		} else {
			c.Restart = append(c.Restart, key)
		}
	}
	c.Hot = append(c.Hot, changedJobs(old.Jobs, updated.Jobs)...)
	return c
}

// With is the configuration in force after updated was read: the keys that take
// effect at once are its, the others stay as they are.
func (l *Loaded) With(updated *Loaded) *Loaded {
	next := *updated
	next.Config = l.Config
	next.Degradation.Degradation, next.Jobs, next.Log.Level = updated.Degradation.Degradation, updated.Jobs, updated.Log.Level
	into, from := reflect.ValueOf(&next.Scheduler).Elem(), reflect.ValueOf(updated.Scheduler)
	for i := range into.NumField() {
		if slices.Contains(scheduler.LiveKeys(), tag(into.Type().Field(i))) {
			into.Field(i).Set(from.Field(i))
		}
	}
	return &next
}

// isLive reports whether the key takes effect without a restart.
func isLive(key string) bool {
	part, rest, _ := strings.Cut(key, ".")
	first, _, _ := strings.Cut(rest, ".")
	switch part {
	case "degradation":
		return first != "centre"
	case "scheduler":
		return slices.Contains(scheduler.LiveKeys(), first)
	case "log":
		return first == "level"
	}
	return false
}

// file is the configuration without the jobs, and with the sections of the chosen
// drivers only: the others have no effect.
func (l *Loaded) file() Config {
	c := l.Config
	c.Jobs, c.Locks.Sections = nil, nil
	if own, ok := l.Locks.Sections[l.Locks.Driver]; ok {
		c.Locks.Sections = map[string]strictyaml.Raw{l.Locks.Driver: own}
	}
	c.Degradation.Centre.Sections = nil
	if own := l.centrePart(); !own.Equal(strictyaml.Raw{}) {
		c.Degradation.Centre.Sections = map[string]strictyaml.Raw{l.Degradation.Centre.Driver: own}
	}
	return c
}

// differing lists the paths of the keys whose values differ. What has no keys of its
// own is one value.
func differing(path string, a, b reflect.Value) []string {
	var out []string
	if raw, ok := reflect.TypeAssert[strictyaml.Raw](a); ok {
		if !raw.Equal(b.Interface().(strictyaml.Raw)) {
			return []string{path}
		}
		return nil
	}
	switch {
	case a.Kind() == reflect.Struct && hasKeys(a.Type()):
		for i := range a.NumField() {
			f := a.Type().Field(i)
			switch key := tag(f); {
			case f.Tag.Get("yaml") == ",inline":
				out = append(out, differing(path, a.Field(i), b.Field(i))...)
			case key != "" && key != "-":
				out = append(out, differing(join(path, key), a.Field(i), b.Field(i))...)
			}
		}
	case a.Kind() == reflect.Map && a.Type().Key().Kind() == reflect.String:
		names := map[string]bool{}
		for _, m := range []reflect.Value{a, b} {
			for _, k := range m.MapKeys() {
				names[k.String()] = true
			}
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			k := reflect.ValueOf(name).Convert(a.Type().Key())
			x, y := a.MapIndex(k), b.MapIndex(k)
			if !x.IsValid() || !y.IsValid() {
				out = append(out, join(path, name))
			} else {
				out = append(out, differing(join(path, name), x, y)...)
			}
		}
	case !reflect.DeepEqual(a.Interface(), b.Interface()):
		out = append(out, path)
	}
	return out
}

func hasKeys(t reflect.Type) bool {
	for f := range t.Fields() {
		if f.Tag.Get("yaml") != "" {
			return true
		}
	}
	return false
}

func tag(f reflect.StructField) string {
	key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return key
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// changedJobs tells what became of the jobs, in the order of the updated file, and
// then those that are gone.
func changedJobs(old, updated []Job) []string {
	before := map[string]Job{}
	for _, j := range old {
		before[j.Name] = j
	}
	var out []string
	for _, j := range updated {
		was, ok := before[j.Name]
		delete(before, j.Name)
		switch {
		case !ok:
			out = append(out, fmt.Sprintf("jobs.%s (added)", j.Name))
		case !reflect.DeepEqual(was, j):
			out = append(out, fmt.Sprintf("jobs.%s (changed)", j.Name))
		}
	}
	for _, j := range old {
		if _, gone := before[j.Name]; gone {
			out = append(out, fmt.Sprintf("jobs.%s (removed)", j.Name))
		}
	}
	return out
}

func lockKeys() []string { return strictyaml.Keys(reflect.TypeFor[Locks]()) }

package configs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/configs/strictyaml"
	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/cronspec"
	"github.com/solotick/solotick/store"
)

type checker struct {
	*Loaded
	o Options
}

var tablePrefix = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)

func (c *checker) check() {
	if err := scheduler.ValidateName(c.Namespace); err != nil {
		c.doc.Add("namespace", err.Error(), "")
	}
	c.store()
	c.locks()
	c.leader()
	s := c.Scheduler
	s.Namespace = "checked-above"
	c.doc.AddError("scheduler", s.Validate())
	c.degradation()
	allowed(c, "log.level", c.Log.Level, "debug", "info", "warn", "error")
	allowed(c, "log.format", c.Log.Format, "text", "json")
	c.jobs()
}

// leader looks at how replicas campaign, together or for partitions.
func (c *checker) leader() {
	err := c.Leader.Validate()
	if n := c.Scheduler.Partitions; n > 1 && n <= leader.MaxPartitions && err == nil {
		err = leader.SharesConfig{Config: c.Leader, Partitions: n}.Validate()
	}
	c.doc.AddError("leader", err)
	c.doc.AddError("admin", c.Admin.Validate())
}

// degradation looks at the modes first, since it knows which was meant.
func (c *checker) degradation() {
	d := c.Degradation.Degradation
	d.Jobs = maps.Clone(d.Jobs)
	if d.Switch != "" && !slices.Contains(scheduler.SwitchPositions(), d.Switch) {
		allowed(c, "degradation.switch", d.Switch, scheduler.SwitchPositions()...)
		d.Switch = ""
	}
	if !slices.Contains(scheduler.Modes(), d.Mode) {
		allowed(c, "degradation.mode", d.Mode, scheduler.Modes()...)
		d.Mode = ""
	}
	for name, mode := range c.Degradation.Jobs {
		if mode != "" && !slices.Contains(scheduler.Modes(), mode) {
			allowed(c, "degradation.jobs."+name, mode, scheduler.Modes()...)
			delete(d.Jobs, name)
		}
	}
	c.doc.AddError("degradation", d.Validate())
	c.centre()
}

// allowed adds a problem unless the value is one of names or not given.
func allowed[T ~string](c *checker, path string, value T, names ...T) {
	if value == "" || slices.Contains(names, value) {
		return
	}
	texts := make([]string, len(names))
	for i, n := range names {
		texts[i] = string(n)
	}
	c.doc.Add(path, fmt.Sprintf("%.64q is not a name known here", value), strictyaml.Allowed(string(value), texts))
}

func (c *checker) store() {
	known := c.o.StoreDrivers == nil || slices.Contains(c.o.StoreDrivers, c.Store.Driver)
	switch {
	case !known:
		allowed(c, "store.driver", c.Store.Driver, c.o.StoreDrivers...)
	case c.Store.OnServer():
		c.storeServer()
	default:
		c.storeFile()
	}
	if !tablePrefix.MatchString(c.Store.TablePrefix) {
		c.doc.Add("store.table_prefix", fmt.Sprintf("%.64q cannot begin the name of a table", c.Store.TablePrefix), "use a lower-case letter and then letters, digits and _, at most 32")
	}
}

// storeServer checks the settings of a driver on a server.
func (c *checker) storeServer() {
	for key, negative := range map[string]bool{"max_conns": c.Store.MaxConns < 0, "connect_timeout": c.Store.ConnectTimeout < 0} {
		if negative {
			c.doc.Add("store."+key, "is negative", "leave it out for the default")
		}
	}
	switch {
	case c.Store.DSN.IsZero():
		c.doc.Add("store", "has no dsn", "driver "+c.Store.Driver+" wants the address of its server: write dsn: or dsn_file:")
	case c.o.CheckStore != nil:
		c.doc.AddError("store", c.o.CheckStore(c.Store))
	}
}

// storeFile refuses what belongs to a server where the driver keeps a file.
func (c *checker) storeFile() {
	for f := range reflect.TypeFor[Server]().Fields() {
		if path := "store." + f.Tag.Get("yaml"); c.doc.Has(path) {
			c.doc.Add(path, "belongs to the driver of a database server", "driver sqlite opens a file, its dsn: remove it, or name the server's driver")
		}
	}
	c.path("store.dsn", c.Store.DSN)
}

// serverAddress finds what clients of database servers take: user:password@host, and
// key=value with a password.
var serverAddress = regexp.MustCompile(`^[^/\\:]+:[^@]*@|(?i)\bpassword\s*=`)

var drivePath = regexp.MustCompile(`^[A-Za-z]:[/\\]`)

// path refuses the address of a server where SQLite wants a file: it is a mistake,
// and SQLite's errors quote the name of the file, which would show the password.
func (c *checker) path(where string, dsn secret.Value) {
	name := dsn.Reveal()
	if strings.HasPrefix(name, "file:") || drivePath.MatchString(name) {
		return
	}
	if strings.Contains(name, "://") || serverAddress.MatchString(name) {
		c.doc.Add(where, "looks like the address of a database server", "driver sqlite wants the path of a file; for a server name its driver")
	}
}

func (c *checker) locks() {
	known := append([]string{LocksInStore}, c.o.LockDrivers...)
	if c.o.LockDrivers != nil {
		allowed(c, "locks.driver", c.Locks.Driver, known...)
	}
	c.doc.AddError("locks", c.Locks.Config.Validate())
	if c.Locks.Driver == sqlite {
		var own struct {
			DSN secret.Value `yaml:"dsn"`
		}
		_ = c.Locks.Decode(&own) // the driver checks the rest when it is opened
		c.path("locks.sqlite.dsn", own.DSN)
	}
	if c.o.CheckLocks != nil && slices.Contains(c.o.LockDrivers, c.Locks.Driver) {
		c.doc.AddError("locks."+c.Locks.Driver, c.o.CheckLocks(c.Locks.Driver, c.Locks.Decode))
	}
	for _, key := range slices.Sorted(maps.Keys(c.Locks.Sections)) {
		if key != c.Locks.Driver && !slices.Contains(known, key) {
			c.doc.UnknownKey("locks", key, append(append(lockKeys(), known...), c.Locks.Driver))
		}
	}
}

// crashes are the crash policies by their names in the file.
var crashes = map[string]store.OnCrash{
	"rerun": store.CrashRerun, "mark_failed": store.CrashFail, "next_tick": store.CrashNextTick, "indeterminate": store.CrashIndeterminate,
}

func (c *checker) jobs() {
	first := map[string]int{}
	for i, j := range c.Jobs {
		path := fmt.Sprintf("jobs[%d]", i)
		if err := scheduler.ValidateName(j.Name); err != nil {
			c.doc.Add(path+".name", err.Error(), "")
		} else if earlier, twice := first[j.Name]; twice {
			c.doc.Add(path+".name", fmt.Sprintf("job %q is defined a second time, the first is in line %d", j.Name, c.doc.At(fmt.Sprintf("jobs[%d].name", earlier)).Line), "rename or remove one of them")
		} else {
			first[j.Name] = i
		}
		c.kind(path, j)
		c.policies(path, j)
		c.trigger(path, j)
		// The scheduler has the last word, on what makes sense.
		if c.sound(path) && c.sound("scheduler") {
			c.doc.AddError(path, c.SchedulerConfig().CheckJob(j.define(noHandler)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Degradation.Jobs)) {
		if _, ok := first[name]; !ok && len(c.Jobs) > 0 {
			at := "degradation.jobs." + name
			remedy := "remove it, unless the job is defined in code"
			if near := strictyaml.Nearest(name, slices.Collect(maps.Keys(first))); near != "" {
				remedy = "did you mean " + near + "?"
			}
			c.Warnings = append(c.Warnings, c.doc.Problem(at, "no job of this file has that name", remedy))
		}
	}
}

func noHandler(context.Context, *scheduler.Run) error { return nil }

// sound reports whether nothing is wrong so far with what stands at path or below.
func (c *checker) sound(path string) bool {
	found, _ := errors.AsType[strictyaml.Problems](c.doc.Err())
	return !slices.ContainsFunc(found, func(p strictyaml.Problem) bool { return p.Path == path || strings.HasPrefix(p.Path, path+".") })
}

func (c *checker) kind(path string, j Job) {
	var kinds []string
	for _, kind := range []string{"exec", "http", "sql"} {
		if c.doc.Has(path + "." + kind) {
			kinds = append(kinds, kind)
		}
	}
	switch {
	case len(kinds) == 0:
		c.doc.Add(path, "says nothing to do", "give one of exec, http and sql")
	case len(kinds) > 1:
		c.doc.Add(path+"."+kinds[1], "stands beside "+kinds[0], "keep one of them, and make a job of its own for the other")
	}
	if j.Exec != nil {
		c.doc.AddError(path+".exec", errors.Join(j.Exec.Validate(), j.Exec.CheckLease(c.Scheduler.Lease)))
	}
	if j.HTTP != nil {
		c.doc.AddError(path+".http", j.HTTP.Validate())
	}
	if c.doc.Has(path+".sql") && strings.TrimSpace(j.SQL) == "" {
		c.doc.Add(path+".sql", "is empty", "write one or more statements")
	}
}

func (c *checker) policies(path string, j Job) {
	allowed(c, path+".misfire", j.Misfire, scheduler.MisfireFireOnce, scheduler.MisfireFireAll, scheduler.MisfireSkip)
	allowed(c, path+".overlap", j.Overlap, scheduler.OverlapSkip, scheduler.OverlapBufferAll)
	allowed(c, path+".gate", j.Gate, scheduler.GateLock, scheduler.GateLeader, scheduler.GateNone)
	allowed(c, path+".degraded", j.Degraded, scheduler.Modes()...)
	allowed(c, path+".when_store_down", j.WhenStoreDown, scheduler.StoreDownWait, scheduler.StoreDownRun)
	if j.WhenStoreDown == scheduler.StoreDownRun && c.Scheduler.Journal == "" {
		c.doc.Add(path+".when_store_down", "has no place to note such runs", "name a directory on this host's disk in scheduler.journal")
	}
	if j.WhenStoreDown == scheduler.StoreDownRun && j.SQL != "" {
		c.doc.Add(path+".when_store_down", "stands beside sql, whose statements are run by the store's database", "leave it out")
	}
	allowed(c, path+".on_crash", j.OnCrash, "rerun", "mark_failed", "next_tick", "indeterminate")
	if j.PauseReason != "" && !j.Paused {
		c.doc.Add(path+".pause_reason", "stands beside no pause", "write paused: true, or remove it")
	}
	for key, negative := range map[string]bool{
		"timeout": j.Timeout < 0, "retry.attempts": j.Retry.Attempts < 0, "retry.base": j.Retry.Base < 0, "retry.max": j.Retry.Max < 0,
		"catch_up.window": j.CatchUp.Window < 0, "catch_up.most": j.CatchUp.Most < 0,
	} {
		if negative {
			c.doc.Add(path+"."+key, "is negative", "leave it out for the default")
		}
	}
	if j.Retry.Max > 0 && j.Retry.Base > j.Retry.Max {
		c.doc.Add(path+".retry.base", fmt.Sprintf("%v is longer than max, %v", j.Retry.Base, j.Retry.Max), "lower base or raise max")
	}
}

func (c *checker) trigger(path string, j Job) {
	switch {
	case j.Queue && c.doc.Has(path+".cron"):
		c.doc.Add(path+".queue", "stands beside cron", "keep one of them: a queue job runs when it is enqueued")
	case j.Queue:
		for _, key := range []string{"misfire", "catch_up", "overlap", "gate", "timezone", "dst", "spread", "degraded", "when_store_down"} {
			if c.doc.Has(path + "." + key) {
				c.doc.Add(path+"."+key, "is for cron jobs", "remove it, or give the job a cron instead of queue")
			}
		}
	case !c.doc.Has(path + ".cron"):
		c.doc.Add(path, "says nothing of when", "give a cron, or queue: true")
	default:
		c.schedule(path, j)
	}
}

func (c *checker) schedule(path string, j Job) {
	o := cronspec.Options{Zone: j.TimeZone, Gap: j.DST.Gap, Fold: j.DST.Fold}
	if o.Zone == "" && !strings.HasPrefix(j.Cron, "TZ=") && !strings.HasPrefix(j.Cron, "CRON_TZ=") {
		o.Zone = c.Scheduler.TimeZone
	}
	spec, err := cronspec.Parse(j.Cron, o)
	var bad *cronspec.Error
	switch {
	case errors.As(err, &bad):
		key := ".cron"
		switch bad.Field {
		case "gap", "fold":
			key = ".dst." + bad.Field
		case "zone":
			if j.TimeZone == "" && o.Zone != "" {
				return // it is the scheduler's, and told there
			}
			if j.TimeZone != "" {
				key = ".timezone"
			}
		}
		c.doc.Add(path+key, fmt.Sprintf("%s %.64q %s", bad.Field, bad.Value, bad.Problem), bad.Remedy)
	case err != nil:
		c.doc.Add(path+".cron", err.Error(), "")
	default:
		if _, every := spec.Every(); j.Spread && !every {
			c.doc.Add(path+".spread", "moves @every schedules only", "remove it, or write the schedule as @every")
		}
	}
}

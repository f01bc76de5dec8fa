package configs

import (
	"errors"
	"fmt"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/execjob"
	"github.com/solotick/solotick/scheduler/httpjob"
	"github.com/solotick/solotick/store"
)

// Kinds make the handlers of the jobs of a file.
type Kinds struct {
	// Exec makes a command's. Default execjob.New.
	Exec func(execjob.Config, execjob.Deps) (scheduler.Handler, error)
	// HTTP makes a request's. Default httpjob.New.
	HTTP func(httpjob.Config, httpjob.Deps) (scheduler.Handler, error)
	// SQL makes that of statements, such as sqljob.New bound to a guard. Without it a
	// file with such jobs is refused.
	SQL func(statements string) (scheduler.Handler, error)
}

// BuildJobs makes the jobs of the file, in its order. The error is strictyaml.Problems
// and names the places of all jobs that cannot be made.
func (l *Loaded) BuildJobs(k Kinds) ([]scheduler.Job, error) {
	if k.Exec == nil {
		k.Exec = execjob.New
	}
	if k.HTTP == nil {
		k.HTTP = httpjob.New
	}
	if k.SQL == nil {
		k.SQL = func(string) (scheduler.Handler, error) {
			return nil, errors.New("configs: jobs of this kind need a database, and this program has given none")
		}
	}
	doc := l.doc.Fork()
	jobs := make([]scheduler.Job, 0, len(l.Jobs))
	for i, j := range l.Jobs {
		var h scheduler.Handler
		var err error
		path := fmt.Sprintf("jobs[%d].", i)
		switch {
		case j.Exec != nil:
			path += "exec"
			h, err = k.Exec(*j.Exec, execjob.Deps{DrainTimeout: l.Scheduler.DrainTimeout})
		case j.HTTP != nil:
			path += "http"
			h, err = k.HTTP(*j.HTTP, httpjob.Deps{})
		default:
			path += "sql"
			h, err = k.SQL(j.SQL)
		}
		if err != nil {
			doc.AddError(path, err)
			continue
		}
		jobs = append(jobs, j.define(h))
	}
	if err := doc.Err(); err != nil {
		return nil, err
	}
	return jobs, nil
}

// define is the job of the scheduler.
func (j Job) define(h scheduler.Handler) scheduler.Job {
	if j.Queue {
		return scheduler.QueueFunc(j.Name, h, j.options()...)
	}
	return scheduler.Cron(j.Name, j.Cron, h, j.options()...)
}

func (j Job) options() []scheduler.Option {
	opts := []scheduler.Option{scheduler.WhenOwnerDies(crashes[j.OnCrash]), scheduler.Timeout(j.Timeout), scheduler.Describe(j.Description)}
	switch {
	case j.SQL != "":
		opts = append(opts, scheduler.Promise(scheduler.ExactlyOnce))
	case j.HTTP != nil && j.HTTP.Idempotent && crashes[j.OnCrash] == store.CrashRerun:
		opts = append(opts, scheduler.Promise(scheduler.EffectivelyOnce))
	}
	if j.Retry != (Retry{}) {
		opts = append(opts, scheduler.Retry(j.Retry.Attempts, j.Retry.Base, j.Retry.Max))
	}
	if j.Paused {
		opts = append(opts, scheduler.Paused(j.PauseReason))
	}
	if j.Queue {
		return opts
	}
	opts = append(opts,
		scheduler.OnMisfire(j.Misfire), scheduler.OnOverlap(j.Overlap), scheduler.WithGate(j.Gate),
		scheduler.CatchUp(j.CatchUp.Window, j.CatchUp.Most), scheduler.DaylightSaving(j.DST.Gap, j.DST.Fold), scheduler.WhenDegraded(j.Degraded), scheduler.WhenStoreDown(j.WhenStoreDown))
	if j.TimeZone != "" {
		opts = append(opts, scheduler.TimeZone(j.TimeZone))
	}
	if j.Spread {
		opts = append(opts, scheduler.Spread())
	}
	return opts
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/solotick/solotick/cmd/solotick/internal/doctor"
	"github.com/solotick/solotick/configs"
	"github.com/solotick/solotick/configs/strictyaml"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/sqllock"
)

// diagnosis is what "doctor -o json" prints.
type diagnosis struct {
	File     string           `json:"file"`
	State    doctor.State     `json:"state"` // the gravest
	Findings []doctor.Finding `json:"findings"`
}

func newDoctor() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "doctor (FILE | -c FILE)",
		GroupID: groupSetUp,
		Short:   "Look at all that a worker relies on, and tell what is wrong",
		Long: `Look at all that a worker relies on, and tell what is wrong and what to do: the
file, the store with its version, session settings, tables, collations, indexes
and the rights of its user, the clocks, and the lock backend.

It changes nothing. Run it with the file of a worker, and so as its database user.

Exit codes: 0 no problem (there may be warnings), 1 a problem, 2 bad arguments.`,
		Example: `  solotick doctor -c solotick.yaml
  solotick doctor -c solotick.yaml -o json`,
		Args: cobra.MaximumNArgs(1),
	}
	file, out := fileFlag(cmd), outputFlag(cmd)
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		file, err := namedFile(cmd, *file, args)
		if err != nil {
			return err
		}
		d := diagnosis{File: file, Findings: diagnose(ctx, file)}
		if err := ctx.Err(); err != nil {
			return err
		}
		d.State = doctor.Worst(d.Findings)
		if out.value == "json" {
			err = printJSON(cmd.OutOrStdout(), d)
		} else {
			err = d.print(cmd.OutOrStdout())
		}
		if err == nil && d.State == doctor.Problem {
			return endWith(exitFailure)
		}
		return err
	})
	return cmd
}

func (d *diagnosis) print(w io.Writer) error {
	problems, warnings := 0, 0
	for _, f := range d.Findings {
		switch f.State {
		case doctor.Problem:
			problems++
		case doctor.Warning:
			warnings++
		case doctor.OK:
		}
		fmt.Fprintf(w, "%-8s %-11s %s\n", f.State, f.Check, printable(f.Found))
		if f.Remedy != "" {
			fmt.Fprintf(w, "%-8s %-11s %s\n", "", "", "-> "+printable(f.Remedy))
		}
	}
	_, err := fmt.Fprintf(w, "%s, %s.\n", plural(problems, "problem"), plural(warnings, "warning"))
	return err
}

// diagnose looks at everything that the file names.
func diagnose(ctx context.Context, file string) []doctor.Finding {
	loaded, err := load(file)
	if err == nil {
		_, err = loaded.BuildJobs(jobKinds((&site{loaded: loaded}).sqlRules(), nil, nil))
	}
	if err != nil {
		return unreadable(err)
	}
	all := []doctor.Finding{{Check: "config", State: doctor.OK, Found: fmt.Sprintf(
		"namespace %s, store %s, locks %s, %s", loaded.Namespace, loaded.Store.Driver, loaded.Locks.Driver, plural(len(loaded.Jobs), "job"))}}
	for _, w := range loaded.Warnings {
		all = append(all, doctor.Finding{Check: "config", State: doctor.Warning, Found: fmt.Sprintf("%s:%d: %s: %s", w.File, w.Line, w.Path, w.Message), Remedy: w.Remedy})
	}
	s := &site{file: file, loaded: loaded}
	defer s.close()
	store := s.examineStore(ctx)
	all = append(all, store...)
	if s.loaded.Locks.Driver == configs.LocksInStore && doctor.Worst(store) == doctor.Problem {
		return all // the locks are there, too
	}
	if s.loaded.Locks.Driver != memoryDriver {
		all = append(all, s.examineLocks(ctx)...)
	}
	return append(all, s.placement().Scope())
}

// unreadable are the problems of a file.
func unreadable(err error) []doctor.Finding {
	problems, ok := errors.AsType[strictyaml.Problems](err)
	if !ok {
		return []doctor.Finding{doctor.Bad("config", err.Error(), "name a file that can be read")}
	}
	var all []doctor.Finding
	for _, p := range problems {
		all = append(all, doctor.Bad("config", fmt.Sprintf("%s:%d:%d: %s: %s", p.File, p.Line, p.Column, p.Path, p.Message), orDefault(p.Remedy, "correct the file; 'solotick config check' tells when it is good")))
	}
	return all
}

func (s *site) examineStore(ctx context.Context) []doctor.Finding {
	if err := s.mustExist(); err != nil {
		f := doctor.Finding{Check: "store", State: doctor.Problem, Found: err.Error(), Remedy: "run 'solotick migrate up'"}
		if s.loaded.Store.Migrate() {
			f.State = doctor.Warning
		}
		return []doctor.Finding{f}
	}
	st, err := s.gormStore(ctx)
	if err != nil {
		return []doctor.Finding{doctor.Bad("store", err.Error(), "do what the error says; a worker cannot start before")}
	}
	target := doctor.Store{Store: st, AutoMigrate: s.loaded.Store.Migrate(), ClockOffset: s.loaded.Scheduler.ClockOffset}
	if s.loaded.Locks.Driver == configs.LocksInStore {
		if target.Locks, err = s.storeLocks(ctx); err != nil {
			return []doctor.Finding{doctor.Bad("store", err.Error(), "do what the error says")}
		}
	}
	return doctor.CheckStore(ctx, target)
}

// examineLocks takes a lock, unless that would make the database of the locks.
func (s *site) examineLocks(ctx context.Context) []doctor.Finding {
	if err := s.locksMustExist(); err != nil {
		return []doctor.Finding{{Check: "locks", State: doctor.Warning, Found: err.Error(), Remedy: "nothing, if no lock was ever taken; else look whether the path is right"}}
	}
	if s.loaded.Locks.Driver == configs.LocksInStore && !s.locksMade(ctx) {
		return nil // the schema tells
	}
	off := false
	s.loaded.Store.AutoMigrate = &off // look, and make nothing
	locker, err := s.openLockerWith(ctx, locks.Config{TTL: max(s.loaded.Locks.TTL, defaultTTL), RequestTimeout: time.Second})
	if err != nil {
		return []doctor.Finding{doctor.Unreachable(err)}
	}
	return []doctor.Finding{doctor.CheckLocks(ctx, locker, s.loaded.Locks.Driver, locks.Key(s.namespace(), "doctor"))}
}

// locksMade tells whether the locks in the store have their table.
func (s *site) locksMade(ctx context.Context) bool {
	d, err := s.storeLocks(ctx)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	status, err := d.MigrationStatus(ctx)
	return err == nil && status.Current == status.Latest
}

func (s *site) placement() doctor.Placement {
	p := doctor.Placement{
		OnServer: s.loaded.Store.OnServer(), InStore: s.loaded.Locks.Driver == configs.LocksInStore,
		InProcess: s.loaded.Locks.Driver == memoryDriver, OnThisHost: s.loaded.Locks.Driver == sqliteDriver,
	}
	if p.OnThisHost && !p.OnServer {
		var own sqllock.PluginConfig
		if err := s.loaded.Locks.Decode(&own); err == nil {
			a, errA := os.Stat(own.DSN)
			b, errB := os.Stat(s.loaded.Store.DSN.Reveal())
			p.SameFile = errA == nil && errB == nil && os.SameFile(a, b)
		}
	}
	return p
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"gorm.io/gorm"

	"github.com/solotick/solotick/configs"
	"github.com/solotick/solotick/configs/strictyaml"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/sqllock"
	"github.com/solotick/solotick/scheduler/cronspec"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

const defaultFileHelp = `Without -c, store and locks are the file solotick.db in the working directory, and
the namespace is "default": then processes exclude each other only in the same
directory.`

// builtIn is the configuration without a file: every setting at its default.
const builtIn = "namespace: default\n"

// site is a configuration with what it names, opened when asked for. It belongs to
// one goroutine.
type site struct {
	file     string // for people
	loaded   *configs.Loaded
	db       *gorm.DB
	store    *gormstore.Store
	locker   *locks.Locker
	observer func(locks.Event) // of the locker; nil for none
	ttl      time.Duration     // of the one lease that is to be taken; 0 for that of the file
	closed   []func() error    // what to close, in the order of opening

	// patient: a lock backend that can be opened before it answers is not waited for,
	// so that the degradation mode says what happens meanwhile.
	patient bool
}

// fileFlag adds -c to a command.
func fileFlag(cmd *cobra.Command) *string {
	file := cmd.Flags().StringP("config", "c", "", "configuration file")
	if err := cmd.MarkFlagFilename("config", "yaml", "yml"); err != nil {
		panic(err) // the flag does not exist: a mistake in this package
	}
	return file
}

// namedFile is the file of a command that takes it as its argument or with -c.
func namedFile(cmd *cobra.Command, flag string, args []string) (string, error) {
	switch {
	case len(args) > 0 && flag != "":
		return "", usagef("two configuration files, %s and %s: name one", args[0], flag)
	case len(args) > 0 && args[0] != "":
		return args[0], nil
	case flag != "":
		return flag, nil
	}
	return "", usagef("no configuration file: name it, as in '%s -c solotick.yaml'; see '%s --help'", cmd.CommandPath(), cmd.CommandPath())
}

// openSite reads the file and connects to nothing. What is wrong with the file is a
// usage error.
func openSite(cmd *cobra.Command, file string) (*site, error) {
	loaded, err := load(file)
	if err != nil {
		return nil, usageError(err)
	}
	for _, w := range loaded.Warnings {
		warn(cmd.ErrOrStderr(), "warning: %v", w)
	}
	s := &site{file: file, loaded: loaded}
	if file == "" {
		s.file = "the built-in configuration"
	}
	return s, nil
}

// known is what this program can open.
func known() configs.Options {
	return configs.Options{StoreDrivers: storeDrivers(), LockDrivers: lockDrivers(), CheckStore: checkStore, CheckLocks: checkLocks, CentreDrivers: centreDrivers(), CheckCentre: checkCentre}
}

func load(file string) (*configs.Loaded, error) {
	o := known()
	if file == "" {
		return configs.Parse("built-in", []byte(builtIn), o)
	}
	loaded, err := configs.Load(file, o)
	if err != nil {
		return nil, err
	}
	// All jobs of this program are in the file, so a name that it has not is a mistake:
	// where it goes unnoticed, a job runs in a mode that nobody wanted.
	var stray strictyaml.Problems
	for _, w := range loaded.Warnings {
		if strings.HasPrefix(w.Path, "degradation.jobs.") {
			stray = append(stray, w)
		}
	}
	if len(stray) > 0 {
		return nil, stray
	}
	return loaded, nil
}

func (s *site) namespace() string { return s.loaded.Namespace }

func (s *site) lease() time.Duration {
	if d := s.loaded.Scheduler.Lease; d != 0 {
		return d
	}
	return 10 * time.Second
}

// processLabel tells people who is who.
func processLabel() string {
	host, err := os.Hostname()
	if err != nil {
		host = filepath.Base(os.Args[0])
	}
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}

// openDB opens the database: a file is created, and to a server nothing is sent.
func (s *site) openDB(ctx context.Context) (*gorm.DB, error) {
	if s.db != nil {
		return s.db, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if b, ok := serverOf(s.loaded.Store.Driver); ok {
		db, err := s.openServer(b)
		s.db = db
		return db, err
	}
	db, err := sqlitedb.Open(s.loaded.Store.DSN.Reveal(), nil) //nolint:contextcheck // Open bounds itself
	if err != nil {
		return nil, err
	}
	s.db = db
	s.closed = append(s.closed, func() error { return sqlitedb.Close(db) })
	return db, nil
}

// mustExist refuses to look into a file that nobody has made: opening it would make
// it.
func (s *site) mustExist() error {
	if s.loaded.Store.OnServer() {
		return nil
	}
	return exists(s.loaded.Store.DSN.Reveal(), "there is no database yet: a worker makes it, or 'solotick migrate up'")
}

// exists answers with what is missing where there is no such file. Any other trouble
// is told when it is opened.
func exists(path, missing string) error {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %s", path, missing)
	}
	return nil
}

// locksMustExist is mustExist for the database of the locks.
func (s *site) locksMustExist() error {
	switch s.loaded.Locks.Driver {
	case configs.LocksInStore:
		return s.mustExist()
	case sqliteDriver:
		var own sqllock.PluginConfig
		if err := s.loaded.Locks.Decode(&own); err != nil {
			return usageError(err)
		}
		return exists(own.DSN, "there is no database yet: the first lock makes it")
	}
	return nil
}

// gormStore is the store without a look at its tables.
func (s *site) gormStore(ctx context.Context) (*gormstore.Store, error) {
	if s.store != nil {
		return s.store, nil
	}
	db, err := s.openDB(ctx)
	if err != nil {
		return nil, err
	}
	st, err := gormstore.New(db, gormstore.WithPrefix(s.loaded.Store.TablePrefix))
	if err != nil {
		return nil, err
	}
	s.store = st
	return st, nil
}

// openStore is the store to work with. It makes or upgrades the tables, unless the
// file forbids that.
func (s *site) openStore(ctx context.Context) (*gormstore.Store, error) {
	st, err := s.gormStore(ctx)
	if err != nil {
		return nil, err
	}
	return st, s.prepare(ctx, st)
}

// readStore is the store to look into. It makes nothing.
func (s *site) readStore(ctx context.Context) (store.Store, error) {
	if err := s.mustExist(); err != nil {
		return nil, err
	}
	st, err := s.gormStore(ctx)
	if err != nil {
		return nil, err
	}
	return st, look(ctx, st)
}

// close closes what was opened, the last first. What it cannot close ends with the
// process.
func (s *site) close() {
	for _, closer := range slices.Backward(s.closed) {
		_ = closer()
	}
	s.closed = nil
}

func (s *site) hasJob(name string) bool { return s.job(name) != nil }

func (s *site) job(name string) *configs.Job {
	for i := range s.loaded.Jobs {
		if j := &s.loaded.Jobs[i]; j.Name == name {
			return j
		}
	}
	return nil
}

// specs are the jobs of the file with their schedules, as the scheduler reads them.
func (s *site) specs() ([]fileJob, error) {
	jobs := make([]fileJob, 0, len(s.loaded.Jobs))
	for i := range s.loaded.Jobs {
		spec, err := s.spec(&s.loaded.Jobs[i])
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, fileJob{name: s.loaded.Jobs[i].Name, spec: spec})
	}
	return jobs, nil
}

// spec is the job's schedule; nil for a queue job.
func (s *site) spec(j *configs.Job) (*cronspec.Spec, error) {
	if j.Queue {
		return nil, nil
	}
	o := cronspec.Options{Zone: j.TimeZone, Gap: j.DST.Gap, Fold: j.DST.Fold}
	if o.Zone == "" && !namesZone(j.Cron) {
		o.Zone = s.loaded.Scheduler.TimeZone
	}
	spec, err := cronspec.Parse(j.Cron, o)
	if err != nil || !j.Spread {
		return spec, err
	}
	every, _ := spec.Every() // the loader has refused spread for anything else
	o.Offset = cronspec.SpreadOffset(s.namespace(), j.Name, every)
	return cronspec.Parse(j.Cron, o)
}

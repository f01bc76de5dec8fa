package configs

import (
	"log/slog"
	"time"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/configs/strictyaml"
	"github.com/solotick/solotick/configs/transport"
	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/admin"
	"github.com/solotick/solotick/scheduler/cronspec"
	"github.com/solotick/solotick/scheduler/execjob"
	"github.com/solotick/solotick/scheduler/httpjob"
	"github.com/solotick/solotick/store"
)

// Config is the whole file.
type Config struct {
	// Namespace keeps applications and environments apart. Required.
	Namespace string `yaml:"namespace"`
	// Store keeps the runs.
	Store Store `yaml:"store"`
	// Locks says who may try.
	Locks Locks `yaml:"locks"`
	// Leader is how replicas campaign for gate leader. Default: see leader.Config.
	Leader leader.Config `yaml:"leader"`
	// Scheduler has the settings of all jobs.
	Scheduler scheduler.Config `yaml:"scheduler"`
	// Degradation is the switch.
	Degradation Degradation `yaml:"degradation"`
	// Jobs that need no Go. Default none.
	Jobs []Job `yaml:"jobs"`
	// Admin is where health, metrics and the switch of the process are served.
	Admin admin.Config `yaml:"admin"`
	// Log of the process.
	Log Log `yaml:"log"`
}

// SchedulerConfig is Scheduler with the parts that stand elsewhere in the file.
func (c *Config) SchedulerConfig() scheduler.Config {
	s := c.Scheduler
	s.Namespace, s.Degradation = c.Namespace, c.Degradation.Degradation
	return s
}

// Store says where the runs are kept.
type Store struct {
	// Driver of the database: sqlite, postgres, mariadb or mysql. Default sqlite.
	Driver string `yaml:"driver"`
	// DSN is the data source: for sqlite the path of the file, which is made if it
	// does not exist; for a server its address in the form of its Go driver. Default
	// solotick.db for sqlite; required for a server.
	DSN secret.Value `yaml:"dsn"`
	// Server is how to reach a database server. Refused for sqlite.
	Server `yaml:",inline"`
	// TablePrefix of solotick's tables: a lower-case letter, then letters, digits and _; at
	// most 32.
	// Default solotick_.
	TablePrefix string `yaml:"table_prefix"`
	// AutoMigrate brings the tables up to date at start. Default true.
	AutoMigrate *bool `yaml:"auto_migrate"`
}

// Server is how to reach a database server, beside its DSN.
type Server struct {
	// Password is used in place of the DSN's. Default none.
	Password secret.Value `yaml:"password"`
	// TLS replaces what the DSN says about encryption. Default: what the DSN says.
	TLS transport.TLS `yaml:"tls"`
	// AllowPlaintext permits a connection to another host without TLS, or with a
	// server that is not verified. Default false.
	AllowPlaintext bool `yaml:"allow_plaintext"`
	// MaxConns bounds the open connections. Default 10.
	MaxConns int `yaml:"max_conns"`
	// ConnectTimeout bounds the opening of one connection. Default 5s.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
}

// OnServer reports whether the runs are kept by a database server.
func (s Store) OnServer() bool { return s.Driver != sqlite }

// Migrate is AutoMigrate or its default.
func (s Store) Migrate() bool { return s.AutoMigrate == nil || *s.AutoMigrate }

const sqlite = "sqlite"

// LocksInStore is the lock driver that keeps its locks in the store's database.
const LocksInStore = "store"

// Locks says which backend keeps the locks, and how leases live.
type Locks struct {
	// Driver is the name of a lock plugin, or store for the store's database.
	// Default store.
	Driver string `yaml:"driver"`
	// Config of the leases.
	locks.Config `yaml:",inline"`
	// Sections are the drivers' own parts, by driver name.
	Sections map[string]strictyaml.Raw `yaml:",inline"`
}

// Decode decodes the chosen driver's own part, strictly, with places in its errors;
// it is what locks.Plugin.Open is given. Without such a part into stays as it is.
func (l Locks) Decode(into any) error { return l.Sections[l.Driver].Decode(into) }

// Log of the process.
type Log struct {
	// Level is debug, info, warn or error. Default info.
	Level string `yaml:"level"`
	// Format is text or json. Default text.
	Format string `yaml:"format"`
}

var levels = map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}

// SlogLevel is Level for package slog.
func (l Log) SlogLevel() slog.Level { return levels[l.Level] }

// Job is a job that needs no Go: exactly one of Cron and Queue says when, exactly
// one of Exec, HTTP and SQL what.
type Job struct {
	// Name, unique in the file. For a queue job it is the kind. Required.
	Name string `yaml:"name"`
	// Description for people. Default none.
	Description string `yaml:"description"`
	// Cron is the schedule, see package cronspec.
	Cron string `yaml:"cron"`
	// Queue makes it the handler of a kind of queue job. The arguments are the standard
	// input of exec, the body of http and the parameter :args of sql.
	Queue bool `yaml:"queue"`
	// Exec runs a command.
	Exec *execjob.Config `yaml:"exec"`
	// HTTP sends a request.
	HTTP *httpjob.Config `yaml:"http"`
	// SQL runs statements in the guarded transaction of the store's database:
	// exactly once. See package sqljob.
	SQL string `yaml:"sql"`
	// Timeout of one attempt. Default 1h.
	Timeout time.Duration `yaml:"timeout"`
	// Retry after an error. Default one attempt for cron, 25 for queue jobs.
	Retry Retry `yaml:"retry"`
	// Misfire is fire_once, fire_all or skip. Default fire_once. Cron only.
	Misfire scheduler.Misfire `yaml:"misfire"`
	// CatchUp bounds what the misfire policy runs. Cron only.
	CatchUp CatchUp `yaml:"catch_up"`
	// Overlap is skip or buffer_all. Default skip. Cron only.
	Overlap scheduler.Overlap `yaml:"overlap"`
	// Gate is lock, leader or none. Default scheduler.gate. Cron only.
	Gate scheduler.Gate `yaml:"gate"`
	// TimeZone of the schedule. Default scheduler.timezone. Cron only.
	TimeZone string `yaml:"timezone"`
	// DST says what becomes of times that clocks skip or repeat. Cron only.
	DST DST `yaml:"dst"`
	// Spread moves an @every schedule by an offset of the job's own. Default false.
	// Cron only.
	Spread bool `yaml:"spread"`
	// OnCrash is what becomes of a run whose process died: rerun, mark_failed,
	// next_tick or indeterminate. Default rerun.
	OnCrash string `yaml:"on_crash"`
	// Paused pauses the job on all replicas: its ticks are skipped and not made up for.
	// Without it a pause that the file has made ends. Default false.
	Paused bool `yaml:"paused"`
	// PauseReason is for people. Default none.
	PauseReason string `yaml:"pause_reason"`
	// Degraded is the job's degradation mode. degradation.jobs overrides it. Default
	// degradation.mode. Cron only.
	Degraded store.Mode `yaml:"degraded"`
	// WhenStoreDown is wait or run. Default wait. Run needs scheduler.journal and is
	// at-least-once. Cron only.
	WhenStoreDown scheduler.StoreDown `yaml:"when_store_down"`
}

// Retry bounds attempts. The pause doubles from Base to Max.
type Retry struct {
	// Attempts in all, at most 10,000. Default 1 for cron, 25 for queue jobs.
	Attempts int `yaml:"attempts"`
	// Base is the first pause. Default 1s.
	Base time.Duration `yaml:"base"`
	// Max is the longest pause. Default 10m.
	Max time.Duration `yaml:"max"`
}

// CatchUp bounds what is run late.
type CatchUp struct {
	// Window is the age beyond which a tick is missed. At least lease + 2s, after which
	// a tick whose owner died has been found. Default: the job's period, from 1m to 1h.
	Window time.Duration `yaml:"window"`
	// Most is how many ticks are caught up. Default 100.
	Most int `yaml:"most"`
}

// DST says what becomes of fixed times on days on which clocks change.
type DST struct {
	// Gap is next_valid, shift or skip. Default next_valid.
	Gap cronspec.GapPolicy `yaml:"gap"`
	// Fold is first, last or both. Default first.
	Fold cronspec.FoldPolicy `yaml:"fold"`
}

func (c *Config) setDefaults() {
	def := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	def(&c.Store.Driver, sqlite)
	if c.Store.Driver == sqlite && c.Store.DSN.IsZero() {
		c.Store.DSN = secret.New("solotick.db")
	}
	def(&c.Store.TablePrefix, "solotick_")
	def(&c.Locks.Driver, LocksInStore)
	def(&c.Degradation.Centre.Driver, CentreInStore)
	def(&c.Log.Level, "info")
	def(&c.Log.Format, "text")
}

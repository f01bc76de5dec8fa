package doctor

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/locks/sqllock"
	"github.com/solotick/solotick/store/gormstore"
)

// Store is a store to look at.
type Store struct {
	Store *gormstore.Store
	// Locks are the locks that are kept in the store's database; nil if elsewhere.
	Locks *sqllock.Driver
	// AutoMigrate: a worker makes and upgrades the tables.
	AutoMigrate bool
	// ClockOffset is added to this host's clock.
	ClockOffset time.Duration
}

// callTimeout bounds one look at the store.
const callTimeout = 10 * time.Second

// CheckStore looks at a store. Where it cannot be reached, is no server to work
// with, or has no tables, what depends on that is left out.
func CheckStore(ctx context.Context, s Store) []Finding {
	c := checker{Store: s, db: s.Store.DB()}
	all := c.reach(ctx)
	if Worst(all) == Problem {
		return all
	}
	if all = append(all, c.server(ctx)...); Worst(all) == Problem {
		return all
	}
	schema := c.schema(ctx)
	if all = append(all, schema...); schema[0].State != OK {
		return all
	}
	all = append(all, c.names(ctx)...)
	all = append(all, c.indexes(ctx), c.grants(ctx))
	return all
}

type checker struct {
	Store
	db *gorm.DB
}

// row reads one row.
func (c checker) row(ctx context.Context, query string, into ...any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.db.WithContext(ctx).Raw(query).Row().Scan(into...)
}

// column reads the first column of all rows.
func (c checker) column(ctx context.Context, query string, args ...any) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var all []string
	err := c.db.WithContext(ctx).Raw(query, args...).Scan(&all).Error
	return all, err
}

func unanswered(check string, err error) Finding {
	return Bad(check, err.Error(), "see what the error says; try again")
}

// reach asks the store for its clock.
func (c checker) reach(ctx context.Context) []Finding {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	began := time.Now()
	if _, err := c.Store.Store.Now(ctx); err != nil { // opens the connection
		return []Finding{Bad("store", err.Error(), "check that the server runs, that store.dsn names it, and that the user may connect")}
	}
	opened := time.Since(began)
	sent := time.Now()
	now, err := c.Store.Store.Now(ctx)
	took := time.Since(sent)
	if err != nil {
		return []Finding{unanswered("store", err)}
	}
	here := sent.Add(took / 2).Add(c.ClockOffset)
	return []Finding{
		good("store", "%s answers; the first answer came within %v", c.db.Name(), opened.Round(time.Millisecond)),
		Clock(now.Time().Sub(here), took/2),
	}
}

// maxOffset is how far clocks may be apart in silence. Runs stay right beyond that;
// what people read in lists and logs does not.
const maxOffset = 500 * time.Millisecond

// Clock judges by how much the store's clock is ahead of this host's; it is known
// but for the uncertainty.
func Clock(offset, uncertainty time.Duration) Finding {
	text := fmt.Sprintf("the store's clock is %v ahead of this host's, +-%v", offset.Round(time.Millisecond), (uncertainty + time.Millisecond).Round(time.Millisecond))
	if offset < 0 {
		text = fmt.Sprintf("the store's clock is %v behind this host's, +-%v", -offset.Round(time.Millisecond), (uncertainty + time.Millisecond).Round(time.Millisecond))
	}
	if max(offset, -offset)-uncertainty > maxOffset {
		return doubtful("clock", text, "let a time service (NTP) set the clocks of both hosts; runs go by the store's clock, logs and effects of your jobs by this host's")
	}
	return good("clock", "%s", text)
}

// schema tells whether the tables are those of this program.
func (c checker) schema(ctx context.Context) []Finding {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	status, err := c.Store.Store.MigrationStatus(ctx)
	if err != nil {
		return []Finding{unanswered("schema", err)}
	}
	all := []Finding{c.judge(status, c.Store.Store.CheckSchema(ctx))}
	if c.Locks == nil {
		return all
	}
	locks, err := c.Locks.MigrationStatus(ctx)
	if err != nil {
		return append(all, unanswered("schema", err))
	}
	return append(all, c.judge(locks, nil))
}

func (c checker) judge(s sqldialect.Status, err error) Finding {
	text := fmt.Sprintf("%s: version %d of %d", s.Component, s.Current, s.Latest)
	var schema *sqldialect.SchemaError
	switch {
	case s.Current > s.Latest:
		return Bad("schema", text+": the tables are a newer program's", "upgrade this program; it leaves the tables alone until then")
	case s.Current < s.Latest && c.AutoMigrate:
		return doubtful("schema", text+": pending are "+strings.Join(s.Pending, ", "), "a worker makes them when it starts; 'solotick migrate up' makes them now")
	case s.Current < s.Latest:
		return Bad("schema", text+": pending are "+strings.Join(s.Pending, ", "), "run 'solotick migrate up' as the user who may make tables: store.auto_migrate is false")
	case errors.As(err, &schema):
		return Bad("schema", text+": "+schema.Problem, "use the program that made the tables, or other tables: store.table_prefix")
	case err != nil:
		return unanswered("schema", err)
	}
	return good("schema", "%s", text)
}

// indexes asks for the plans of the statements whose cost must not grow.
func (c checker) indexes(ctx context.Context) Finding {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	plans, err := c.Store.Store.Explain(ctx)
	if err != nil {
		return unanswered("indexes", err)
	}
	var fine, missing []string
	for _, p := range plans {
		if p.ByIndex {
			fine = append(fine, p.Statement)
		} else {
			missing = append(missing, fmt.Sprintf("%s (%s)", p.Index, p.Statement))
		}
	}
	if len(missing) > 0 {
		return Bad("indexes", "cannot be used: "+strings.Join(missing, ", "), "make them again; 'solotick migrate sql' prints how")
	}
	return good("indexes", "%s go by their indexes", strings.Join(fine, ", "))
}

var created = regexp.MustCompile(`(?m)^CREATE TABLE (?:IF NOT EXISTS )?(\w+)`)

// tables are the names of the tables, with what the user who works must be able to do
// with them.
func (c checker) tables() map[string][]string {
	all := map[string][]string{}
	verbs := []string{"SELECT", "INSERT", "UPDATE", "DELETE"}
	add := func(script string) {
		for _, m := range created.FindAllStringSubmatch(script, -1) {
			switch {
			case strings.HasSuffix(m[1], "_schema_version"):
				all[m[1]] = verbs[:1]
			case strings.HasSuffix(m[1], "_locks"): // its rows are fences, and stay
				all[m[1]] = verbs[:3]
			case strings.HasSuffix(m[1], "_switch_changes"): // an audit is added to, and stays
				all[m[1]] = []string{"SELECT", "INSERT"}
			default:
				all[m[1]] = verbs
			}
		}
	}
	add(c.Store.Store.MigrationSQL())
	if c.Locks != nil {
		add(c.Locks.MigrationSQL())
	}
	return all
}

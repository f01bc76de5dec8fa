package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/solotick/solotick/configs"
	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

func newMigrate() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "migrate",
		GroupID: groupSetUp,
		Short:   "Create or upgrade the tables, or show where they stand",
		Long: `Create or upgrade the tables, or show where they stand.

Workers do this by themselves unless the file says store.auto_migrate: false.`,
		Example: `  solotick migrate status -c solotick.yaml
  solotick migrate up -c solotick.yaml`,
	}
	cmd.AddCommand(newMigrateUp(), newMigrateStatus(), newMigrateSQL())
	return cmd
}

func newMigrateUp() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring the tables up to what this program needs",
		Long: `Bring the tables up to what this program needs, under a lock: several calls at
once do no harm. Tables of a newer program are left alone, with an error.

` + defaultFileHelp,
		Example: `  solotick migrate up -c solotick.yaml`,
	}
	file := fileFlag(cmd)
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		site, err := openSite(cmd, *file)
		if err != nil {
			return err
		}
		defer site.close()
		if err := site.migrate(ctx); err != nil {
			return err
		}
		all, err := site.schemas(ctx)
		if err != nil {
			return err
		}
		for _, s := range all {
			fmt.Fprintf(cmd.OutOrStdout(), "%s: version %d\n", s.Component, s.Current)
		}
		return nil
	})
	return cmd
}

func newMigrateStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show which migrations are applied and which are pending",
		Long: `Show which migrations are applied and which are pending.

` + defaultFileHelp,
		Example: `  solotick migrate status -c solotick.yaml -o json`,
	}
	file, out := fileFlag(cmd), outputFlag(cmd)
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		site, err := openSite(cmd, *file)
		if err != nil {
			return err
		}
		defer site.close()
		all, err := site.schemas(ctx)
		if err != nil {
			return err
		}
		if out.value == "json" {
			return printJSON(cmd.OutOrStdout(), all)
		}
		var cells [][]string
		for _, s := range all {
			cells = append(cells, []string{s.Component, fmt.Sprint(s.Current), fmt.Sprint(s.Latest), lastApplied(s), strings.Join(s.Pending, ", ")})
		}
		return printTable(cmd.OutOrStdout(), []string{"TABLES OF", "VERSION", "NEEDED", "APPLIED", "PENDING"}, cells)
	})
	return cmd
}

func lastApplied(s sqldialect.Status) string {
	if len(s.Applied) == 0 {
		return ""
	}
	return rfc3339(s.Applied[len(s.Applied)-1].At)
}

func newMigrateSQL() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sql",
		Short: "Print the schema as a script",
		Long: `Print the schema as a script for an empty database, for those who run migrations
by hand. It connects to nothing.

` + defaultFileHelp,
		Example: `  solotick migrate sql -c solotick.yaml > schema.sql
  solotick migrate sql --driver postgres > schema.sql`,
	}
	file := fileFlag(cmd)
	drv := &choice{allowed: storeDrivers()}
	cmd.Flags().Var(drv, "driver", "the database (default: that of the file)")
	complete(cmd, "driver", drv.allowed...)
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		site, err := openSite(cmd, *file)
		if err != nil {
			return err
		}
		defer site.close()
		script, err := site.schemaSQL(ctx, cmp.Or(drv.value, site.loaded.Store.Driver))
		if err != nil {
			return err
		}
		_, err = fmt.Fprint(cmd.OutOrStdout(), script)
		return err
	})
	return cmd
}

// migrate brings all tables up to what this program needs.
func (s *site) migrate(ctx context.Context) error {
	st, err := s.gormStore(ctx)
	if err != nil {
		return err
	}
	up, cancel := context.WithTimeout(ctx, migrateTimeout)
	defer cancel()
	if err := st.Migrate(up); err != nil || s.loaded.Locks.Driver != configs.LocksInStore {
		return err
	}
	d, err := s.storeLocks(ctx)
	if err != nil {
		return err
	}
	return d.Migrate(up)
}

// schemas tells where all tables stand.
func (s *site) schemas(ctx context.Context) ([]sqldialect.Status, error) {
	if err := s.mustExist(); err != nil {
		return nil, err
	}
	st, err := s.gormStore(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	status, err := st.MigrationStatus(ctx)
	if err != nil || s.loaded.Locks.Driver != configs.LocksInStore {
		return []sqldialect.Status{status}, err
	}
	d, err := s.storeLocks(ctx)
	if err != nil {
		return nil, err
	}
	more, err := d.MigrationStatus(ctx)
	return []sqldialect.Status{status, more}, err
}

// schemaSQL is the script for all tables on a database of that driver. The real one
// need not exist.
func (s *site) schemaSQL(ctx context.Context, driver string) (script string, err error) {
	scratch, end, err := s.scratch(driver)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, end()) }()
	st, err := scratch.gormStore(ctx)
	if err != nil {
		return "", err
	}
	if s.loaded.Locks.Driver != configs.LocksInStore {
		return st.MigrationSQL(), nil
	}
	d, err := scratch.storeLocks(ctx)
	if err != nil {
		return "", err
	}
	return st.MigrationSQL() + "\n" + d.MigrationSQL(), nil
}

// scratch is the site with a database to throw away: a server that nothing is sent to,
// or a file that end removes.
func (s *site) scratch(driver string) (scratch *site, end func() error, err error) {
	scratch = &site{file: s.file, loaded: s.loaded}
	if b, ok := serverOf(driver); ok {
		scratch.db, end, err = b.open(sqldialect.ServerConfig{DSN: secret.New(b.nowhere)})
		return scratch, end, err
	}
	dir, err := os.MkdirTemp("", "solotick-schema-")
	if err != nil {
		return nil, nil, err
	}
	remove := func() error { return os.RemoveAll(dir) }
	if scratch.db, err = sqlitedb.Open(filepath.Join(dir, "scratch.db"), nil); err != nil {
		return nil, nil, errors.Join(err, remove())
	}
	return scratch, func() error { return errors.Join(sqlitedb.Close(scratch.db), remove()) }, nil
}

package sqlitedb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/libtnb/sqlite"
)

// checkPath refuses what cannot become a database, with nothing but looks.
func checkPath(path string) error {
	switch {
	case path == "":
		return errors.New("the path is empty: name a file")
	case strings.Contains(path, ":memory:") || strings.HasPrefix(path, "file:"):
		return fmt.Errorf("%q is not a plain file path: in-memory databases and URIs are not supported; name a file on a local disk", path)
	case strings.ContainsRune(path, 0):
		return fmt.Errorf("%q contains a NUL byte: name a file", path)
	}
	dir := filepath.Dir(path)
	parent, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("open %s: the directory %s does not exist: create it first", path, dir)
	case err != nil:
		return fmt.Errorf("open %s: %w", path, err)
	case !parent.IsDir():
		return fmt.Errorf("open %s: %s is not a directory", path, dir)
	}
	// The bits are looked at beside the kernel's answer because root may write
	// everything: whoever took the bit away meant it.
	if parent.Mode()&0o222 == 0 || !writable(dir) {
		return fmt.Errorf("open %s: the directory %s cannot be written, and SQLite keeps its journal there: allow writing or choose another path", path, dir)
	}
	if name := networkFS(dir); name != "" {
		return fmt.Errorf("open %s: it lies on a network file system (%s), where SQLite's locks are not reliable: use a local disk or a database server", path, name)
	}
	file, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("open %s: %w", path, err)
	case file.IsDir():
		return fmt.Errorf("open %s: it is a directory: name a file in it, such as %s", path, filepath.Join(path, "solotick.db"))
	case !file.Mode().IsRegular():
		return fmt.Errorf("open %s: it is not a regular file", path)
	case file.Mode()&0o444 == 0:
		return fmt.Errorf("open %s: the file cannot be read: allow reading (chmod u+r)", path)
	case file.Mode()&0o222 == 0 || !writable(path):
		return fmt.Errorf("open %s: the file is read-only: allow writing (chmod u+w)", path)
	}
	return checkHeader(path, file.Size())
}

// checkHeader reads the first bytes, https://www.sqlite.org/fileformat.html#magic_header_string.
func checkHeader(path string, size int64) error {
	if size == 0 {
		return nil // SQLite's own new file
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { _ = f.Close() }() // only read from
	const magic = "SQLite format 3\x00"
	head := make([]byte, 100)
	if _, err := io.ReadFull(f, head); err != nil || string(head[:len(magic)]) != magic {
		return fmt.Errorf("open %s: the file is not a SQLite database: name another file, or move this one away", path)
	}
	return nil
}

// quickCheckBytes is the size up to which a file is checked for damage whole at
// every start: some tens of milliseconds. Damage in larger files shows when it is
// read.
const quickCheckBytes = 8 << 20

// checkBody looks for damage on a connection that cannot write.
func checkBody(ctx context.Context, path string, o Options) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	db, err := sql.Open(sqlite.DriverName, dsn(path, o, "_query_only=1"))
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	query := "PRAGMA quick_check(1)"
	if info.Size() > quickCheckBytes {
		query = "SELECT 'ok' FROM (SELECT count(*) FROM sqlite_schema)"
	}
	var found string
	if err := errors.Join(db.QueryRowContext(ctx, query).Scan(&found), db.Close()); err != nil {
		return err
	}
	if found != "ok" {
		return fmt.Errorf("the database file is damaged: restore it from a backup: %s", found)
	}
	return nil
}

package configs

import (
	"fmt"
	"io"
	"os"

	"github.com/solotick/solotick/configs/strictyaml"
)

// Options of a reading. The zero value reads the process's environment and the
// disk, and takes any driver name.
type Options struct {
	// Env looks up a variable. Default os.LookupEnv.
	Env func(name string) (value string, set bool)
	// ReadFile reads the file behind a key that ends in _file. Default os.ReadFile.
	ReadFile func(path string) ([]byte, error)
	// StoreDrivers and LockDrivers are the names that this program knows, such as
	// locks.Registry.Names; the lock driver store is always known. Default any.
	StoreDrivers, LockDrivers []string
	// CheckStore tells what is wrong with the settings of a driver on a server, as a
	// Validate does, and connects to nothing. Default: nobody looks at them before the
	// store is opened.
	CheckStore func(Store) error
	// CheckLocks checks the part of the file that is the lock driver's own: it decodes
	// it and tells what cannot work, as a Validate does, and connects to nothing.
	// Default: nobody looks at that part before the driver is opened.
	CheckLocks func(driver string, decode func(into any) error) error
	// CentreDrivers are the names of configuration centres that this program knows beside
	// store and none. Default any.
	CentreDrivers []string
	// CheckCentre is CheckLocks for the part of the configuration centre. It is asked only
	// where the centre has a part of its own.
	CheckCentre func(driver string, decode func(into any) error) error
}

// synonyms are what other schedulers call a job's keys.
var synonyms = map[string]string{"schedule": "cron", "command": "exec", "retries": "retry"}

// Loaded is a configuration that was accepted. It is not safe for concurrent use.
type Loaded struct {
	Config
	// Warnings are places that are probably, but not certainly, mistakes.
	Warnings []strictyaml.Problem

	doc *strictyaml.Document
}

// Load reads and checks the file. The error is strictyaml.Problems for what is
// wrong in the file, or the error of opening it.
func Load(path string, o Options) (*Loaded, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("configs: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	data, err := io.ReadAll(io.LimitReader(f, strictyaml.MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("configs: %w", err)
	}
	return Parse(path, data, o)
}

// Parse checks the text of a file. The name is used in messages, and paths of
// secret files are relative to its directory.
func Parse(name string, data []byte, o Options) (*Loaded, error) {
	l := &Loaded{doc: strictyaml.Parse(data, strictyaml.Options{File: name, Env: o.Env, ReadFile: o.ReadFile, Synonyms: synonyms})}
	l.doc.Decode(&l.Config)
	if l.doc.Readable() {
		l.setDefaults()
		(&checker{l, o}).check()
	}
	if err := l.doc.Err(); err != nil {
		return nil, err
	}
	return l, nil
}

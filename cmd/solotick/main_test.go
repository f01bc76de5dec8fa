package main

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

// leakChecked is goleak's check in the shape that testscript runs.
type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	code := runTests(l.m)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){"solotick": main, "newer": newer, "damage": damage})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("SOLOTICK_UPDATE") != "",
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exitcode": exitCode,
		},
	})
}

// newer marks the tables of a database as a newer program's.
func newer() {
	db, err := sql.Open("sqlite", "file:"+os.Args[1])
	if err == nil {
		_, err = db.Exec("INSERT INTO solotick_schema_version (component, version, name, checksum, applied_ms) VALUES ('store', 9999, 'later', 'x', 0)")
		err = errors.Join(err, db.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// damage overwrites a database file from its second page on.
func damage() {
	data, err := os.ReadFile(os.Args[1])
	if err == nil {
		for i := 4096; i < len(data); i++ {
			data[i] = 0xAA
		}
		err = os.WriteFile(os.Args[1], data, 0o600)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

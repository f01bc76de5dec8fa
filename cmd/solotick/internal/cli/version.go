package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/solotick/solotick/scheduler/cronspec"
)

// version can be set at link time; builds by the go command know their own.
var version string

type versionInfo struct {
	Version    string `json:"version"`
	Commit     string `json:"commit,omitempty"`
	CommitTime string `json:"commit_time,omitempty"`
	Modified   bool   `json:"modified"`
	Go         string `json:"go"`
	OS         string `json:"os"`
	Arch       string `json:"arch"`
	TZData     string `json:"tzdata"`
	SQLite     string `json:"sqlite_driver,omitempty"`
}

func readVersion() versionInfo {
	v := versionInfo{Version: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, TZData: cronspec.TZDataVersion()}
	if info, ok := debug.ReadBuildInfo(); ok {
		if v.Version == "" {
			v.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Commit = s.Value
			case "vcs.time":
				v.CommitTime = s.Value
			case "vcs.modified":
				v.Modified = s.Value == "true"
			}
		}
		for _, dep := range info.Deps {
			if dep.Path == "modernc.org/sqlite" {
				v.SQLite = dep.Path + " " + dep.Version
			}
		}
	}
	if v.Version == "" {
		v.Version = "(devel)"
	}
	return v
}

func newVersion() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		GroupID: groupSetUp,
		Short:   "Show the version, the build and the zone data",
		Long: `Show the version, the build and the zone data.

Replicas must agree on the zone data: the instants of a schedule come from them.`,
		Example: `  solotick version
  solotick version -o json`,
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		v, w := readVersion(), cmd.OutOrStdout()
		if out.value == "json" {
			return printJSON(w, v)
		}
		fmt.Fprintf(w, "solotick %s, %s, %s/%s, tzdata %s\n", v.Version, v.Go, v.OS, v.Arch, v.TZData)
		if v.Commit != "" {
			edited := ""
			if v.Modified {
				edited = ", with changes"
			}
			fmt.Fprintf(w, "commit %s of %s%s\n", v.Commit, v.CommitTime, edited)
		}
		return nil
	}
	return cmd
}

package cli

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/solotick/solotick/configs"
	"github.com/solotick/solotick/configs/strictyaml"
)

func newConfig() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "config",
		GroupID: groupSetUp,
		Short:   "Check a configuration file",
		Long:    `Check a configuration file.`,
		Example: `  solotick config check solotick.yaml`,
	}
	cmd.AddCommand(newConfigCheck())
	return cmd
}

// checked is what "config check -o json" prints.
type checked struct {
	File      string       `json:"file"`
	OK        bool         `json:"ok"`
	Problems  []problem    `json:"problems"`
	Warnings  []problem    `json:"warnings"`
	Namespace string       `json:"namespace,omitempty"`
	Store     string       `json:"store,omitempty"` // driver
	Locks     string       `json:"locks,omitempty"` // driver
	Gate      string       `json:"gate,omitempty"`
	Mode      string       `json:"degradation_mode,omitempty"`
	Jobs      []checkedJob `json:"jobs"`
}

type checkedJob struct {
	Name     string `json:"name"`
	Kind     string `json:"kind"` // cron or queue
	Does     string `json:"does"` // exec, http or sql
	Schedule string `json:"schedule"`
	TimeZone string `json:"timezone"`
	Next     string `json:"next"`
}

type problem struct {
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Path    string `json:"path"`
	Message string `json:"message"`
	Remedy  string `json:"remedy"`
}

func newConfigCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check (FILE | -c FILE)",
		Short: "Tell everything that is wrong with a file, or what it gives",
		Long: `Tell everything that is wrong with a file, with line and column, or what it gives:
its jobs with their next ticks. It connects to nothing and runs nothing.

Exit codes: 0 the file is good, 2 it is not.`,
		Example: `  solotick config check solotick.yaml
  solotick config check solotick.yaml -o json`,
		Args: cobra.MaximumNArgs(1),
	}
	file, out := fileFlag(cmd), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		file, err := namedFile(cmd, *file, args)
		if err != nil {
			return err
		}
		c := checked{File: file, Problems: []problem{}, Warnings: []problem{}, Jobs: []checkedJob{}}
		loaded, err := load(file)
		if err == nil {
			_, err = loaded.BuildJobs(jobKinds((&site{loaded: loaded}).sqlRules(), nil, nil)) // the statements of sql jobs are looked at here
		}
		var problems strictyaml.Problems
		switch {
		case errors.As(err, &problems):
			c.Problems = problemsOf(problems)
		case err != nil:
			return usageError(err)
		default:
			if err := c.fill(file, loaded); err != nil {
				return err
			}
		}
		if out.value == "json" {
			if err := printJSON(cmd.OutOrStdout(), c); err != nil {
				return err
			}
			if !c.OK {
				return endWith(exitUsage)
			}
			return nil
		}
		if !c.OK {
			return usageError(err)
		}
		for _, w := range loaded.Warnings {
			warn(cmd.ErrOrStderr(), "warning: %v", w)
		}
		return c.print(cmd.OutOrStdout())
	}
	return cmd
}

func problemsOf(list []strictyaml.Problem) []problem {
	out := make([]problem, len(list))
	for i, p := range list {
		out[i] = problem{Line: p.Line, Column: p.Column, Path: p.Path, Message: p.Message, Remedy: p.Remedy}
	}
	return out
}

// fill tells what the file gives, with the defaults that it leaves to them.
func (c *checked) fill(file string, loaded *configs.Loaded) error {
	s := &site{file: file, loaded: loaded}
	c.OK, c.Warnings = true, problemsOf(loaded.Warnings)
	c.Namespace, c.Store, c.Locks = loaded.Namespace, loaded.Store.Driver, loaded.Locks.Driver
	c.Gate, c.Mode = orDefault(string(loaded.Scheduler.Gate), "lock"), orDefault(string(loaded.Degradation.Mode), "fail_fast")
	for i := range loaded.Jobs {
		j := &loaded.Jobs[i]
		row := checkedJob{Name: j.Name, Kind: "queue", Does: "sql"}
		switch {
		case j.Exec != nil:
			row.Does = "exec"
		case j.HTTP != nil:
			row.Does = "http"
		}
		spec, err := s.spec(j)
		if err != nil {
			return err
		}
		if spec != nil {
			row.Kind, row.Schedule, row.TimeZone = "cron", spec.String(), spec.Zone()
			if next, ok := spec.Next(time.Now()); ok {
				row.Next = rfc3339(next)
			}
		}
		c.Jobs = append(c.Jobs, row)
	}
	return nil
}

func orDefault(value, standard string) string {
	if value == "" {
		return standard
	}
	return value
}

func (c *checked) print(w io.Writer) error {
	fmt.Fprintf(w, "%s is good: namespace %s, store %s, locks %s, gate %s, degradation mode %s, %s.\n",
		c.File, c.Namespace, c.Store, c.Locks, c.Gate, c.Mode, plural(len(c.Jobs), "job"))
	if len(c.Jobs) == 0 {
		return nil
	}
	cells := make([][]string, len(c.Jobs))
	for i, j := range c.Jobs {
		cells[i] = []string{j.Name, j.Kind, j.Does, j.Schedule, j.TimeZone, j.Next}
	}
	return printTable(w, []string{"JOB", "KIND", "DOES", "SCHEDULE", "ZONE", "NEXT"}, cells)
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

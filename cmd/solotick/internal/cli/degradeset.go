package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/solotick/solotick/configs"
	"github.com/solotick/solotick/configs/strictyaml"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/switchwatch"
	"github.com/solotick/solotick/store"
)

// words are what can be set: modes, which force the switch unless it is said
// otherwise, and positions.
func words() []string {
	var all []string
	for _, m := range scheduler.Modes() {
		all = append(all, string(m))
	}
	return append(all, positions()...)
}

func positions() []string {
	var all []string
	for _, p := range scheduler.SwitchPositions() {
		all = append(all, string(p))
	}
	return all
}

// order is what the flags of "degrade set" say.
type order struct {
	word, position, reason, by, lasts string
	jobs                              []string
	noExpiry, yes                     bool
}

func newDegradeSet() *cobra.Command {
	var o order
	cmd := &cobra.Command{
		Use:   "set [MODE | POSITION] --reason TEXT (--for D | --no-expiry)",
		Short: "Throw the switch of all workers",
		Long: `Throw the switch of all workers. A mode (fail_fast, local_mutex, store_only) is
taken at once, as if the lock backend were away; with --switch auto it is only
what will be taken when that happens. A position without a mode (forced, off,
auto) leaves the modes as the file says. --job sets the mode of one job, and
alone leaves the position as it is.

The setting takes the place of the one before, and ends by itself after --for.
It shows from what to what and asks; --yes answers, and is required where there
is no terminal. What cannot work is refused before anything is touched.

Who, why, from and to go to the audit in the store, wherever the centre is. If
the store is away, the switch is thrown all the same, with a warning.

` + defaultFileHelp + `

Exit codes: 0 thrown, 1 the centre did not answer or you said no, 2 bad arguments
or configuration.`,
		Example: `  solotick degrade set store_only -c solotick.yaml --reason "etcd upgrade" --for 30m
  solotick degrade set off -c solotick.yaml --reason "no runs unlocked" --no-expiry
  solotick degrade set -c solotick.yaml --job charge-cards=fail_fast --reason audit --for 2h --yes`,
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: words(),
	}
	file := fileFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&o.position, "switch", "", "forced, auto or off (default: forced with a mode)")
	f.StringArrayVar(&o.jobs, "job", nil, "JOB=MODE, the mode of one job; may be repeated")
	f.StringVar(&o.lasts, "for", "", "when it ends by itself, such as 30m, 12h or 2d")
	f.BoolVar(&o.noExpiry, "no-expiry", false, "it stays until it is cleared")
	reasonFlags(cmd, &o)
	complete(cmd, "switch", positions()...)
	completeJobs(cmd, file)
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			o.word = args[0]
		}
		site, err := openSite(cmd, *file)
		if err != nil {
			return err
		}
		defer site.close()
		set, lasts, err := o.setting(site)
		if err != nil {
			return err
		}
		return site.throw(ctx, cmd, o, set, lasts)
	})
	return cmd
}

func newDegradeClear() *cobra.Command {
	var o order
	cmd := &cobra.Command{
		Use:   "clear --reason TEXT",
		Short: "Take back what was set, so that the file counts again",
		Long: `Take back what was set, so that the file of each worker counts again.

It shows what ends and asks; --yes answers, and is required where there is no
terminal.

` + defaultFileHelp + `

Exit codes: 0 cleared, or nothing was set, 1 the centre did not answer or you
said no, 2 bad arguments or configuration.`,
		Example: `  solotick degrade clear -c solotick.yaml --reason "upgrade done"`,
	}
	file := fileFlag(cmd)
	reasonFlags(cmd, &o)
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		site, err := openSite(cmd, *file)
		if err != nil {
			return err
		}
		defer site.close()
		// Who and why are held to the same rules as in a setting.
		if err := (scheduler.SwitchSetting{Position: scheduler.SwitchAuto, Reason: o.reason, By: o.by}).Validate(); err != nil {
			return usageError(named(err))
		}
		return site.throw(ctx, cmd, o, nil, 0)
	})
	return cmd
}

func reasonFlags(cmd *cobra.Command, o *order) {
	f := cmd.Flags()
	f.StringVar(&o.reason, "reason", "", "why, for whoever asks later; required")
	f.StringVar(&o.by, "by", whoami(), "who")
	f.Lookup("by").DefValue = "USER@HOST"
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask")
}

// whoami tells people who threw the switch. It proves nothing.
func whoami() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		return name
	}
	return name + "@" + host
}

// completeJobs offers JOB=MODE for the jobs of the file.
func completeJobs(cmd *cobra.Command, file *string) {
	err := cmd.RegisterFlagCompletionFunc("job", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		loaded, err := load(*file)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var all []string
		for i := range loaded.Jobs {
			if j := &loaded.Jobs[i]; !j.Queue {
				for _, m := range scheduler.Modes() {
					all = append(all, j.Name+"="+string(m))
				}
			}
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the flag does not exist: a mistake in this package
	}
}

// named makes the scheduler's words for a setting those of the flags.
func named(err error) error {
	return errors.New(strings.NewReplacer("scheduler: switch reason: ", "--reason: ", "scheduler: switch by: ", "--by: ",
		"scheduler: switch ", "").Replace(err.Error()))
}

// setting is what is to be set, checked, and for how long; 0 until it is cleared.
func (o *order) setting(s *site) (*scheduler.SwitchSetting, time.Duration, error) {
	t := scheduler.SwitchSetting{Position: scheduler.SwitchPosition(o.position), Reason: o.reason, By: o.by}
	switch {
	case o.word == "":
	case slices.Contains(positions(), o.word):
		if o.position != "" && o.position != o.word {
			return nil, 0, usagef("--switch: %s and %s are two positions: give one", o.word, o.position)
		}
		t.Position = scheduler.SwitchPosition(o.word)
	case slices.Contains(scheduler.Modes(), store.Mode(o.word)):
		t.Mode = store.Mode(o.word)
		if t.Position == "" {
			t.Position = scheduler.SwitchForced
		}
	default:
		return nil, 0, usagef("MODE: %.64q is neither a mode nor a position: %s", o.word, strictyaml.Allowed(o.word, words()))
	}
	if o.position != "" && !slices.Contains(positions(), o.position) {
		return nil, 0, usagef("--switch: %.64q is no position: %s", o.position, strictyaml.Allowed(o.position, positions()))
	}
	for _, text := range o.jobs {
		job, mode, ok := strings.Cut(text, "=")
		modes := words()[:len(scheduler.Modes())]
		switch {
		case !ok:
			return nil, 0, usagef("--job: %.64q is not JOB=MODE", text)
		case !s.hasJob(job):
			return nil, 0, usagef("--job: %s has no job %.64q: %s", s.file, job, s.nearJob(job))
		case !slices.Contains(modes, mode):
			return nil, 0, usagef("--job %s: %.64q is no mode: %s", job, mode, strictyaml.Allowed(mode, modes))
		}
		if was, twice := t.Jobs[job]; twice && was != store.Mode(mode) {
			return nil, 0, usagef("--job %s: is said twice, %s and %s: give one", job, was, mode)
		}
		if t.Jobs == nil {
			t.Jobs = map[string]store.Mode{}
		}
		t.Jobs[job] = store.Mode(mode)
	}
	lasts, err := o.duration()
	if err != nil {
		return nil, 0, err
	}
	if t.Position == "" && len(t.Jobs) == 0 {
		return nil, 0, usagef("MODE: nothing is said: name one of %s, or --job JOB=MODE; to go back to the file, 'solotick degrade clear'", strings.Join(words(), ", "))
	}
	if err := t.Validate(); err != nil {
		return nil, 0, usageError(named(err))
	}
	return &t, lasts, nil
}

func (s *site) nearJob(name string) string {
	var names []string
	for i := range s.loaded.Jobs {
		names = append(names, s.loaded.Jobs[i].Name)
	}
	if near := strictyaml.Nearest(name, names); near != "" {
		return "did you mean " + near + "?"
	}
	return "'solotick jobs' lists them"
}

func (o *order) duration() (time.Duration, error) {
	switch {
	case o.lasts != "" && o.noExpiry:
		return 0, usagef("--for and --no-expiry exclude each other: give one")
	case o.noExpiry:
		return 0, nil
	case o.lasts == "":
		return 0, usagef("--for: say when it ends by itself, such as --for 30m, or --no-expiry")
	}
	d, err := strictyaml.ParseDuration(o.lasts)
	if err != nil {
		return 0, usagef("--for: %w: write it as 30m, 12h or 2d", err)
	}
	if d < time.Second || d > 366*24*time.Hour {
		return 0, usagef("--for: %s is outside 1s to 366d; --no-expiry stays until it is cleared", o.lasts)
	}
	return d, nil
}

// throw shows from what to what, asks, and throws the switch.
func (s *site) throw(ctx context.Context, cmd *cobra.Command, o order, to *scheduler.SwitchSetting, lasts time.Duration) error {
	w := cmd.ErrOrStderr()
	centre, now, away, err := s.throwable(ctx)
	if err != nil {
		return err
	}
	before := &degradation{}
	if before.value, err = loadCentre(ctx, centre); err != nil {
		return err
	}
	before.lay(s.loaded, now)
	if to == nil && len(before.value) == 0 {
		fmt.Fprintln(cmd.OutOrStdout(), "Nothing is set: there is nothing to clear.")
		return nil
	}
	after := &degradation{}
	if to != nil {
		to.At = now.UTC()
		if lasts > 0 {
			to.Until = now.Add(lasts).UTC().Truncate(time.Millisecond)
		}
		if after.value, err = to.Marshal(); err != nil {
			return err
		}
	}
	after.lay(s.loaded, now)
	showChange(w, s, before, after)
	if !o.yes {
		if ok, err := ask(cmd.InOrStdin(), w, "Throw the switch of all workers?"); err != nil {
			return err
		} else if !ok {
			return errNotThrown
		}
	}
	if away != nil {
		warn(w, "warning: the store is away, so the audit will not have this change: %v", away)
	}
	change := store.SwitchChange{Process: processLabel(), Source: "cli", By: o.by, Reason: o.reason, From: string(before.value), Token: store.NewID(store.MillisOf(time.Now()))}
	call, cancel := context.WithTimeout(ctx, centreTimeout)
	defer cancel()
	unrecorded, err := switchwatch.Throw(call, centre, to, change, s.audit(away))
	if err != nil {
		return err
	}
	if unrecorded != nil {
		warn(w, "warning: the switch is thrown, but the audit in the store does not have it: %v", unrecorded)
	}
	if to == nil {
		fmt.Fprintln(cmd.OutOrStdout(), "Cleared. Workers obey within a second.")
		return nil
	}
	fmt.Fprintf(cmd.OutOrStdout(), "Thrown: %s. Workers obey within a second.\n", after.line())
	return nil
}

// throwable opens the centre and, for clock and audit, the store. If the centre is
// elsewhere, a store that is away is told and nothing worse.
func (s *site) throwable(ctx context.Context) (c switchwatch.Centre, now time.Time, away, err error) {
	driver := s.loaded.Degradation.Centre.Driver
	if driver == configs.NoCentre {
		return nil, now, nil, s.noCentre()
	}
	look, cancel := context.WithTimeout(ctx, centreTimeout)
	defer cancel()
	now = time.Now()
	st, away := s.openStore(look)
	if away == nil {
		var at store.Millis
		if at, away = st.Now(look); away == nil {
			now = at.Time()
		}
	}
	if away != nil && driver == configs.CentreInStore {
		return nil, now, nil, away
	}
	c, err = s.centre()
	return c, now, away, err
}

// audit appends a change to the store; nil if that is away.
func (s *site) audit(away error) func(context.Context, store.SwitchChange) error {
	if away != nil {
		return nil
	}
	return func(ctx context.Context, c store.SwitchChange) error {
		_, err := s.store.ThrowSwitch(ctx, s.namespace(), c)
		return err
	}
}

func showChange(w io.Writer, s *site, before, after *degradation) {
	fmt.Fprintf(w, "Switch of all workers of namespace %s:\n  from  %s\n  to    %s", s.namespace(), before.line(), after.line())
	if t := after.Setting; t != nil && !t.Until.IsZero() {
		fmt.Fprintf(w, ", until %s", moment(t.Until))
	}
	fmt.Fprintf(w, "\nIn force then: %s %s", after.Position, after.Mode)
	for i, j := range after.Jobs {
		if i < len(before.Jobs) && before.Jobs[i].Mode != j.Mode {
			fmt.Fprintf(w, "\n  %s: %s -> %s", j.Job, before.Jobs[i].Mode, j.Mode)
		}
	}
	fmt.Fprintln(w)
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/scheduler"
)

func newLeader() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "leader",
		GroupID: groupLook,
		Short:   "Show who leads, or make a leader step down",
		Long: `Show who leads the jobs with gate leader: under which term, since when, and for
how much longer if the term is not kept.

Where the file shares leadership out (scheduler.partitions), each partition is
shown with its leader and the number of the file's jobs in it, and then each
replica with what it leads.

` + defaultFileHelp,
		Example: `  solotick leader -c solotick.yaml
  solotick leader -c solotick.yaml -o json
  solotick leader step-down -c solotick.yaml --yes`,
	}
	file, out := fileFlag(cmd), outputFlag(cmd)
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		site, err := openSite(cmd, *file)
		if err != nil {
			return err
		}
		defer site.close()
		s, err := site.standing(ctx)
		if err != nil {
			return explainHidden(err)
		}
		if out.value == "json" {
			return printJSON(cmd.OutOrStdout(), s)
		}
		return s.print(cmd.OutOrStdout())
	})
	cmd.AddCommand(newLeaderStepDown())
	return cmd
}

// standing is who leads, as "leader -o json" prints it.
type standing struct {
	Election   string         `json:"election"`
	Leader     *leaderRow     `json:"leader,omitempty"`     // of one leader for all jobs; none if nobody leads
	Replicas   []replicaRow   `json:"replicas,omitempty"`   // of shares
	Partitions []partitionRow `json:"partitions,omitempty"` // of shares
	shared     bool
}

type leaderRow struct {
	Label       string `json:"label"`
	Term        int64  `json:"term"`
	Since       string `json:"since,omitempty"` // none where the backend does not tell; so is the next
	RemainingMS int64  `json:"remaining_ms,omitempty"`
}

type partitionRow struct {
	Partition int        `json:"partition"`
	Jobs      int        `json:"jobs"`
	Leader    *leaderRow `json:"leader"` // null if nobody leads
}

type replicaRow struct {
	Label      string `json:"label"`
	Since      string `json:"since,omitempty"`
	Partitions *int   `json:"partitions"` // null where others have the same label, as is the next
	Jobs       *int   `json:"jobs"`
}

func rowOfLeader(l leader.Leader) *leaderRow {
	if l.Term == 0 {
		return nil
	}
	return &leaderRow{Label: l.Label, Term: l.Term, Since: moment(l.Since), RemainingMS: l.Remaining.Milliseconds()}
}

// moment shows an instant that a backend may not know.
func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return rfc3339(t.Truncate(time.Millisecond))
}

// electors opens the lock backend to look at elections. It makes nothing.
func (s *site) electors(ctx context.Context) (scheduler.Deps, error) {
	locker, err := s.openLocks(ctx)
	if err != nil {
		return scheduler.Deps{}, err
	}
	d := scheduler.Deps{Locker: locker}
	err = s.leadership(&d) //nolint:contextcheck // it sends nothing
	return d, err
}

func (s *site) standing(ctx context.Context) (standing, error) {
	d, err := s.electors(ctx)
	if err != nil {
		return standing{}, err
	}
	out := standing{Election: s.leaderKey(), shared: d.Shares != nil}
	if d.Shares == nil {
		l, err := d.Elector.Leader(ctx)
		if errors.Is(err, leader.ErrNoLeader) {
			return out, nil
		}
		out.Leader = rowOfLeader(l)
		return out, err
	}
	board, err := d.Shares.Board(ctx)
	if err != nil {
		return standing{}, err
	}
	jobs := make([]int, len(board.Partitions))
	for _, j := range s.loaded.Jobs {
		gate := j.Gate
		if gate == "" {
			gate = s.loaded.Scheduler.Gate
		}
		if !j.Queue && gate == scheduler.GateLeader {
			jobs[d.Shares.Partition(j.Name)]++
		}
	}
	out.share(board, jobs)
	return out, nil
}

// share fills in who leads what. Leaders are known by their labels alone: replicas that
// have one in common cannot be told apart, and then nothing is said of either.
func (s *standing) share(board leader.Board, jobs []int) {
	same, leads, does := map[string]int{}, map[string]int{}, map[string]int{}
	for _, m := range board.Members {
		same[m.Label]++
	}
	for i, l := range board.Partitions {
		s.Partitions = append(s.Partitions, partitionRow{Partition: i, Jobs: jobs[i], Leader: rowOfLeader(l)})
		if l.Term != 0 {
			leads[l.Label]++
			does[l.Label] += jobs[i]
		}
	}
	for _, m := range board.Members {
		row := replicaRow{Label: m.Label, Since: moment(m.Since)}
		if same[m.Label] == 1 {
			row.Partitions, row.Jobs = new(leads[m.Label]), new(does[m.Label])
		}
		s.Replicas = append(s.Replicas, row)
	}
}

func (r *leaderRow) cells() []string {
	if r == nil {
		return []string{"nobody", "", "", ""}
	}
	cells := []string{r.Label, strconv.FormatInt(r.Term, 10), r.Since, ""}
	if r.RemainingMS > 0 {
		cells[3] = (time.Duration(r.RemainingMS) * time.Millisecond).String()
	}
	return cells
}

func (s standing) print(w io.Writer) error {
	heading := []string{"LEADER", "TERM", "SINCE", "REMAINING"}
	if !s.shared {
		return printTable(w, heading, [][]string{s.Leader.cells()})
	}
	rows := make([][]string, len(s.Partitions))
	for i, p := range s.Partitions {
		rows[i] = append([]string{strconv.Itoa(p.Partition), strconv.Itoa(p.Jobs)}, p.Leader.cells()...)
	}
	if err := printTable(w, append([]string{"PARTITION", "JOBS"}, heading...), rows); err != nil {
		return err
	}
	fmt.Fprintln(w)
	rows = rows[:0]
	alike := false
	for _, r := range s.Replicas {
		cells := []string{r.Label, "", "", r.Since}
		if r.Partitions != nil {
			cells[1], cells[2] = strconv.Itoa(*r.Partitions), strconv.Itoa(*r.Jobs)
		} else {
			alike = true
		}
		rows = append(rows, cells)
	}
	if err := printTable(w, []string{"REPLICA", "PARTITIONS", "JOBS", "SINCE"}, rows); err != nil {
		return err
	}
	if alike {
		fmt.Fprintln(w, "\nWhat replicas with the same label lead cannot be told apart: give each its own scheduler.label.")
	}
	return nil
}

func newLeaderStepDown() *cobra.Command {
	var (
		yes       bool
		partition int
	)
	cmd := &cobra.Command{
		Use:   "step-down",
		Short: "End the term of the leader, so that another is elected",
		Long: `End the term of the leader, whoever that is, so that another is elected.

The leader is told: at once on etcd and ZooKeeper, elsewhere when it next keeps
its term, within a third of the TTL. Its runs are ended, and what they would
still record is refused. It may be elected again: to keep a replica from
leading, stop it, which hands over when its runs have ended.

Where leadership is shared out, name the partition whose leader is meant.

It tells who leads and asks; --yes answers, and is required where there is no
terminal. If the leader has changed by then, nothing is done.

` + defaultFileHelp + `

Exit codes: 0 the term has ended, 1 the backend did not answer, you said no, or
the leader has changed, 2 bad arguments or configuration.`,
		Example: `  solotick leader step-down -c solotick.yaml
  solotick leader step-down -c solotick.yaml --partition 7 --yes -o json`,
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().IntVar(&partition, "partition", -1, "whose leader is meant, where leadership is shared out")
	file, out := fileFlag(cmd), outputFlag(cmd)
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		site, err := openSite(cmd, *file)
		if err != nil {
			return err
		}
		defer site.close()
		key, err := site.electionOf(cmd.Flags().Changed("partition"), partition)
		if err != nil {
			return err
		}
		locker, err := site.openLocks(ctx)
		if err != nil {
			return err
		}
		r := eviction{locker: locker, key: key, out: cmd.OutOrStdout(), told: cmd.ErrOrStderr(), json: out.value == "json"}
		if !yes {
			r.ask = func() (bool, error) { return confirm(cmd.InOrStdin(), cmd.ErrOrStderr()) }
		}
		return explainHidden(r.run(ctx))
	})
	return cmd
}

// electionOf is the key whose holder leads.
func (s *site) electionOf(named bool, partition int) (string, error) {
	n := s.loaded.Scheduler.Partitions
	switch {
	case n <= 1 && named:
		return "", usagef("--partition: %s has one leader for all jobs: leave the flag out", s.file)
	case n <= 1:
		return s.leaderKey(), nil
	case !named:
		return "", usagef("leadership is shared out over %d partitions: name one with --partition; 'solotick leader' lists them", n)
	case partition < 0 || partition >= n:
		return "", usagef("--partition: %d is outside 0 to %d", partition, n-1)
	}
	return leader.PartitionKey(s.leaderKey(), partition), nil
}

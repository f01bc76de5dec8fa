package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"text/tabwriter"
	"time"

	"github.com/solotick/solotick/store/gormstore"
)

// Result is a sale that is over.
type Result struct {
	Setup
	Sold       int     `json:"sold"`
	Oversold   int     `json:"oversold"` // items that nobody can deliver
	Lowest     int     `json:"lowest_stock"`
	Left       int     `json:"stock_left"`
	Twice      int     `json:"sold_twice"`         // requests that were sold more than one item
	Differing  int     `json:"answered_otherwise"` // requests whose repeat had another answer
	Unanswered int     `json:"unanswered"`         // requests that had not all their answers
	Tries      int64   `json:"tries"`              // transactions that wanted to buy
	Conflicts  int64   `json:"conflicts"`          // of these, that met another's
	Seconds    float64 `json:"seconds"`
}

// sell makes a sale in processes of their own.
func sell(ctx context.Context, s Setup) (r Result, err error) {
	db, closer, err := open(s.DB, s.DSN)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, closer()) }()
	st, err := gormstore.New(db)
	if err != nil {
		return r, err
	}
	if err := stockUp(ctx, db, st, s.Items); err != nil {
		return r, err
	}
	s.Namespace = "flash-sale-" + rand.Text() // keys of an earlier sale have their answers
	from := time.Now()
	told, err := employ(ctx, s)
	if err != nil {
		return r, err
	}
	b, err := readBooks(ctx, db)
	if err != nil {
		return r, err
	}
	r = Result{
		Setup: s, Sold: b.Sold, Oversold: max(b.Sold-s.Items, 0), Lowest: b.Lowest, Left: b.Stock, Twice: b.Twice,
		Seconds: time.Since(from).Round(10 * time.Millisecond).Seconds(),
	}
	answers := map[string][]string{}
	for _, t := range told {
		r.Tries += t.Tries
		r.Conflicts += t.Conflicts
		for name, text := range t.Answers {
			answers[name] = append(answers[name], text)
		}
	}
	r.Unanswered = s.Requests/s.Repeats - len(answers)
	for _, all := range answers {
		if len(all) != s.Repeats {
			r.Unanswered++
		}
		for _, text := range all {
			if text != all[0] {
				r.Differing++
				break
			}
		}
	}
	return r, nil
}

// employ starts the workers and waits for what they tell.
func employ(ctx context.Context, s Setup) ([]Told, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var first *process
	var others []*process
	var err error
	if first, err = hire(ctx, s, 0); err != nil {
		return nil, err
	}
	if s.provoked() {
		err = first.holds()
	}
	if err == nil && s.Freeze {
		err = freeze(first.cmd.Process)
	}
	for i := 1; err == nil && i < s.Processes; i++ {
		var p *process
		if p, err = hire(ctx, s, i); err == nil {
			others = append(others, p)
		}
	}
	if err != nil {
		cancel()
	}
	told := make([]Told, s.Processes)
	for i, p := range others {
		err = errors.Join(err, p.end(&told[i+1]))
	}
	if err == nil && s.Freeze {
		_, err = io.WriteString(first.in, "\n")
		err = errors.Join(err, thaw(first.cmd.Process))
	}
	if err != nil {
		cancel()
	}
	return told, errors.Join(err, first.end(&told[0]))
}

// process is a worker.
type process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	errors bytes.Buffer
}

func hire(ctx context.Context, s Setup, number int) (*process, error) {
	task, err := json.Marshal(Task{s, number})
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, self)}
	p.cmd.Env = append(os.Environ(), workerEnv+"="+string(task), dsnEnv+"="+s.DSN)
	p.cmd.Stderr = &p.errors
	dieWithUs(p.cmd)
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	return p, p.cmd.Start()
}

// holds waits until the worker is between its look and its write.
func (p *process) holds() error {
	line, err := p.out.ReadString('\n')
	if line != holding+"\n" {
		err = fmt.Errorf("the first worker said %q: %w", line, errors.Join(err, errors.New(p.errors.String())))
	}
	return err
}

// end waits for the worker's end.
func (p *process) end(told *Told) error {
	err := json.NewDecoder(p.out).Decode(told)
	_ = p.in.Close() // what it did not read, it did not need
	if waited := p.cmd.Wait(); waited != nil || err != nil {
		return fmt.Errorf("a worker ended: %w: %s", errors.Join(waited, err), p.errors.String())
	}
	return nil
}

// table prints the results.
func table(out io.Writer, results []Result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "database\tlock\tupdate\tkey\tfreeze\tsold\toversold\tlowest stock\tsold twice\tanswered otherwise\ttries\tconflicts\tseconds\t")
	for _, r := range results {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%.1f\t\n", r.DB, onOff(r.Lock), r.Update, onOff(r.Key), onOff(r.Freeze),
			r.Sold, r.Oversold, r.Lowest, r.Twice, r.Differing, r.Tries, r.Conflicts, r.Seconds)
	}
	return w.Flush()
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

// broken says what no protection that was on should have let happen.
func broken(results []Result) error {
	var errs []error
	for _, r := range results {
		if r.Unanswered > 0 {
			errs = append(errs, fmt.Errorf("%d requests were not answered", r.Unanswered))
		}
		if r.Update != "blind" && (r.Sold != r.Items || r.Lowest != 0 || r.Left != 0) {
			errs = append(errs, fmt.Errorf("update %s: %d of %d items are sold, the lowest stock was %d, %d are left", r.Update, r.Sold, r.Items, r.Lowest, r.Left))
		}
		if r.Key && (r.Differing > 0 || r.Twice > 0) {
			errs = append(errs, fmt.Errorf("with a key: %d requests have two answers, %d were sold twice", r.Differing, r.Twice))
		}
	}
	return errors.Join(errs...)
}

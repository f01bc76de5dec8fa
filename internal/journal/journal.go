// Package journal keeps, in a file of this process, the runs that the store could not
// record, until it can. A line is on the disk before its call returns. Each process
// has a file of its own in a directory that the processes of a host may share; what a
// dead process left is taken over by the next that looks.
package journal

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/gofrs/flock"

	"github.com/solotick/solotick/internal/mutation"
)

// Entry is one run. It has ended when Result is there; one without, of a process that
// is dead, was cut off.
type Entry struct {
	Job    string          `json:"job"`
	Tick   int64           `json:"tick"` // Unix milliseconds
	Begun  int64           `json:"begun"`
	Result json.RawMessage `json:"result,omitempty"` // the caller's
	Alive  bool            `json:"-"`                // this process began it and has not ended it
}

type line struct {
	Op string `json:"op"` // begin, end, settled
	Entry
}

type key struct {
	job  string
	tick int64
}

// Journal is one process's. Its methods are safe for concurrent use.
type Journal struct {
	dir, namespace string

	mu      sync.Mutex
	file    *os.File
	lock    *flock.Flock
	path    string
	entries map[key]*Entry
	order   []key
}

const (
	suffix  = ".journal"
	damaged = ".damaged"
)

// Open makes the directory where it is missing (for its owner alone) and a file in it
// for the process that is called owner, which must be unique.
func Open(dir, namespace, owner string) (*Journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	j := &Journal{dir: dir, namespace: namespace, entries: map[key]*Entry{}}
	j.path = filepath.Join(dir, namespace+"."+owner+suffix)
	// Locked under another name first: no one may take an empty file for a dead
	// process's. The lock is on the file, not on its name.
	fresh := filepath.Join(dir, namespace+"."+owner+".new")
	f, err := os.OpenFile(fresh, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	j.file, j.lock = f, flock.New(fresh)
	ok, err := j.lock.TryLock()
	if err == nil && !ok {
		err = errors.New("somebody else has just locked it")
	}
	if err == nil {
		err = os.Rename(fresh, j.path)
	}
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("journal: %s: %w", fresh, err), j.lock.Close(), f.Close(), os.Remove(fresh))
	}
	return j, nil
}

// Begin notes a run that is about to start. On an error the run is not in the journal
// and must not start.
func (j *Journal) Begin(job string, tick, now int64) error {
	e := Entry{Job: job, Tick: tick, Begun: now}
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.write(line{"begin", e}); err != nil {
		return err
	}
	e.Alive = true
	j.put(&e)
	return nil
}

// End notes how a run ended. It is in the journal, with or without an error.
func (j *Journal) End(job string, tick int64, result json.RawMessage) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := j.entries[key{job, tick}]
	if e == nil {
		return fmt.Errorf("journal: %s has not begun", job)
	}
	e.Result, e.Alive = result, false
	return j.write(line{"end", *e})
}

// Settled forgets a run: it is recorded elsewhere.
func (j *Journal) Settled(job string, tick int64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	k := key{job, tick}
	if j.entries[k] == nil {
		return nil
	}
	delete(j.entries, k)
	if len(j.entries) == 0 {
		j.order = nil
		return j.file.Truncate(0)
	}
	return j.write(line{"settled", Entry{Job: job, Tick: tick}})
}

// Entries returns what is not settled, the oldest first.
func (j *Journal) Entries() []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := make([]Entry, 0, len(j.entries))
	for _, k := range j.order {
		if e := j.entries[k]; e != nil {
			out = append(out, *e)
		}
	}
	return out
}

// Has reports whether a run of the job is not settled.
func (j *Journal) Has(job string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for k := range j.entries {
		if k.job == job {
			return true
		}
	}
	return false
}

// Adopt takes over the runs that dead processes of the namespace left in the
// directory. A file with lines that cannot be read is kept beside, under a name that
// ends in .damaged, and named in the error; its other lines are taken over.
func (j *Journal) Adopt() (n int, err error) {
	files, err := os.ReadDir(j.dir) // not Glob: the directory's name may look like a pattern
	if err != nil {
		return 0, fmt.Errorf("journal: %w", err)
	}
	var errs []error
	for _, f := range files {
		path := filepath.Join(j.dir, f.Name())
		if !strings.HasSuffix(path, suffix) || path == j.path || namespaceOf(path) != j.namespace {
			continue
		}
		got, err := j.adopt(path)
		n += got
		errs = append(errs, err)
	}
	return n, errors.Join(errs...)
}

func (j *Journal) adopt(path string) (n int, err error) {
	lock := flock.New(path, flock.SetFlag(os.O_RDWR))
	ok, err := lock.TryLock()
	if errors.Is(err, fs.ErrNotExist) || err == nil && !ok {
		return 0, nil // its process lives, or another one was first
	}
	if err != nil {
		return 0, fmt.Errorf("journal: %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	entries, bad, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // another one was first
	}
	if err != nil {
		return 0, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range entries {
		if j.entries[key{e.Job, e.Tick}] != nil && !mutation.On("journal-once") {
			continue // taken over before, and not removed then
		}
		op := "begin"
		if e.Result != nil {
			op = "end"
		}
		if err := j.write(line{op, e}); err != nil {
			return n, err
		}
		j.put(&e)
		n++
	}
	if bad > 0 {
		kept := path + damaged
		if err := os.Rename(path, kept); err != nil {
			return n, fmt.Errorf("journal: %w", err)
		}
		return n, fmt.Errorf("journal: %d lines of %s cannot be read: the file is kept as %s", bad, path, kept)
	}
	if err := os.Remove(path); err != nil {
		return n, fmt.Errorf("journal: %w", err)
	}
	return n, nil
}

// Close gives the file up; a file without entries is removed.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var err error
	if len(j.entries) == 0 {
		err = os.Remove(j.path)
	}
	return errors.Join(err, j.file.Close(), j.lock.Close())
}

func (j *Journal) put(e *Entry) {
	k := key{e.Job, e.Tick}
	if j.entries[k] == nil {
		j.order = append(j.order, k)
	}
	j.entries[k] = e
}

// write puts a line on the disk, whole or not at all.
func (j *Journal) write(l line) error {
	data, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	before, err := j.file.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if _, err = j.file.Write(append(data, '\n')); err == nil {
		err = j.file.Sync()
	}
	if err != nil {
		// Half a line would spoil the next one.
		return errors.Join(fmt.Errorf("journal: %w", err), j.file.Truncate(before))
	}
	return nil
}

// read returns what is not settled in a file, and how many lines cannot be read. The
// last line may be cut off: its process died while it wrote.
func read(path string) (entries []Entry, bad int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, fmt.Errorf("journal: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	at := map[key]int{}
	settled := map[key]bool{}
	r := bufio.NewReader(f)
	for {
		text, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, 0, fmt.Errorf("journal: %w", err)
		}
		var l line
		if json.Unmarshal(text, &l) != nil || l.Job == "" {
			bad++
			continue
		}
		k := key{l.Job, l.Tick}
		i, known := at[k]
		switch {
		case l.Op == "settled":
			settled[k] = true
		case l.Op == "begin" && !known, l.Op == "end" && !known:
			at[k] = len(entries)
			entries = append(entries, l.Entry)
		case l.Op == "end":
			entries[i].Result = l.Result
		case l.Op == "begin":
		default:
			bad++
		}
	}
	left := entries[:0]
	for _, e := range entries {
		if !settled[key{e.Job, e.Tick}] {
			left = append(left, e)
		}
	}
	return left, bad, nil
}

// namespaceOf is the part of the name before the owner, which has no dot.
func namespaceOf(path string) string {
	name := filepath.Base(path)
	name = name[:len(name)-len(suffix)]
	for i := len(name) - 1; i >= 0; i-- {
		if name[i] == '.' {
			return name[:i]
		}
	}
	return ""
}

// syncDir makes a rename survive a crash of the machine.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close() //nolint:errcheck // it was only read
	if err := d.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, fs.ErrInvalid) {
		return err
	}
	return nil
}

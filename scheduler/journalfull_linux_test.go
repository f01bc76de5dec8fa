package scheduler_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
)

// diskFull puts the device that is always full in the place of the journal in dir,
// until the returned function is called.
func diskFull(t *testing.T, dir string) (end func()) {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range fds {
		path, err := os.Readlink(link)
		if err != nil || filepath.Dir(path) != dir {
			continue
		}
		fd, err := strconv.Atoi(filepath.Base(link))
		if err != nil {
			t.Fatal(err)
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || flags&unix.O_APPEND == 0 {
			continue // the lock, which is another one of the same file
		}
		full, err := unix.Open("/dev/full", unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		was, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		put := func(from int) {
			if err := unix.Dup3(from, fd, unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			if err := unix.Close(from); err != nil {
				t.Fatal(err)
			}
		}
		put(full)
		return func() { put(was) }
	}
	t.Fatalf("no journal is open in %s", dir)
	return nil
}

// TestJournalIsFull: neither the store nor the journal takes anything for a minute. No
// tick runs, one line says so, and one how many they were; they are made up for.
func TestJournalIsFull(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		dir, log := t.TempDir(), new(lines)
		c := schedulertest.New(t, schedulertest.Options{
			Replicas: 1, Logs: log,
			Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
				cfg.Journal, cfg.Degradation.After = dir, 2*time.Second
			},
			Jobs: func(r *schedulertest.Replica) []scheduler.Job {
				return []scheduler.Job{scheduler.Cron("j", "@every 1s", effect(r), scheduler.WhenStoreDown(scheduler.StoreDownRun),
					scheduler.OnMisfire(scheduler.MisfireFireAll), scheduler.CatchUp(time.Hour, 1000), scheduler.OnOverlap(scheduler.OverlapBufferAll))}
			},
		})
		untilMinute(t)
		begin, r := time.Now(), c.Replicas[0]
		told := func(what string) (n int) {
			for _, line := range log.take(t) {
				if strings.Contains(line, what) {
					n++
				}
			}
			return n
		}
		end := diskFull(t, dir)
		r.CutStore()
		time.Sleep(time.Minute + 500*time.Millisecond)
		if n := len(modes(c, "j", begin.Add(time.Second), time.Now())); n != 0 {
			t.Errorf("runs of %d modes without store and journal", n)
		}
		if n := told("journal cannot be written"); n != 1 {
			t.Errorf("%d lines about a journal that cannot be written, want 1", n)
		}
		end()
		time.Sleep(10 * time.Second)
		if n := told("ticks_not_run="); n != 1 {
			t.Errorf("%d lines about what the journal did not take, want 1", n)
		}
		r.Store.Heal()
		time.Sleep(time.Minute)
		once(t, c, "j", time.Second, begin, begin.Add(time.Minute+40*time.Second))
	})
}

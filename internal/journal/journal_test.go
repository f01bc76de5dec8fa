package journal_test

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/internal/journal"
)

// TestMain: with JOURNAL_DIR set the test binary is a process that leaves a journal behind
// and waits to be killed.
func TestMain(m *testing.M) {
	dir := os.Getenv("JOURNAL_DIR")
	if dir == "" {
		goleak.VerifyTestMain(m)
	}
	j, err := journal.Open(dir, "shop.eu", "dead")
	if err != nil {
		panic(err)
	}
	for tick := range int64(3) {
		if err := j.Begin("a", tick, 10); err != nil {
			panic(err)
		}
	}
	if err := j.End("a", 0, json.RawMessage(`{"state":"succeeded"}`)); err != nil {
		panic(err)
	}
	if err := j.End("a", 1, json.RawMessage(`{}`)); err != nil {
		panic(err)
	}
	if err := j.Settled("a", 1); err != nil {
		panic(err)
	}
	_, _ = os.Stdout.WriteString("written\n")
	select {}
}

func open(t *testing.T, dir, namespace, owner string) *journal.Journal {
	t.Helper()
	j, err := journal.Open(dir, namespace, owner)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

func TestEntriesLiveUntilTheyAreSettled(t *testing.T) {
	j := open(t, t.TempDir(), "shop", "me")
	if err := j.Begin("a", 1, 7); err != nil {
		t.Fatal(err)
	}
	if err := j.End("b", 1, nil); err == nil {
		t.Error("a run ended that has not begun")
	}
	if got := j.Entries(); len(got) != 1 || !got[0].Alive || got[0].Result != nil || !j.Has("a") || j.Has("b") {
		t.Errorf("entries %+v", got)
	}
	if err := j.End("a", 1, json.RawMessage(`1`)); err != nil {
		t.Fatal(err)
	}
	if got := j.Entries(); len(got) != 1 || got[0].Alive || string(got[0].Result) != "1" {
		t.Errorf("entries %+v", got)
	}
	for range 2 {
		if err := j.Settled("a", 1); err != nil {
			t.Fatal(err)
		}
	}
	if got := j.Entries(); len(got) != 0 || j.Has("a") {
		t.Errorf("entries %+v", got)
	}
}

// TestWhatADeadProcessLeftIsTakenOver kills a process in the middle of a run and adopts
// its file, once.
func TestWhatADeadProcessLeftIsTakenOver(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "JOURNAL_DIR="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	mine, other, stranger := open(t, dir, "shop.eu", "me"), open(t, dir, "shop.eu", "other"), open(t, dir, "shop", "me")
	if n, err := mine.Adopt(); n != 0 || err != nil {
		t.Errorf("%d runs taken from a process that lives: %v", n, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if n, err := stranger.Adopt(); n != 0 || err != nil {
		t.Errorf("%d runs taken from another namespace: %v", n, err)
	}
	if n, err := mine.Adopt(); n != 2 || err != nil {
		t.Errorf("%d runs taken over, want 2: %v", n, err)
	}
	want := []journal.Entry{{Job: "a", Tick: 0, Begun: 10, Result: json.RawMessage(`{"state":"succeeded"}`)}, {Job: "a", Tick: 2, Begun: 10}}
	if got := mine.Entries(); !reflect.DeepEqual(got, want) {
		t.Errorf("taken over: %+v", got)
	}
	if n, err := other.Adopt(); n != 0 || err != nil {
		t.Errorf("%d runs taken over twice: %v", n, err)
	}
	// Closed with entries, it is left for the next one.
	if err := mine.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := other.Adopt(); n != 2 || err != nil || !reflect.DeepEqual(other.Entries(), want) {
		t.Errorf("%d runs taken over from a process that stopped: %v, %+v", n, err, other.Entries())
	}
}

// TestDamagedFileIsKept: what can be read of it counts, what cannot is not thrown away.
func TestDamagedFileIsKept(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "shop.dead.journal")
	text := `{"op":"begin","job":"a","tick":1,"begun":1}
garbage
{"op":"begin","job":"b","tick":2,"begun":1}
{"op":"end","job":"b","ti`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	j := open(t, dir, "shop", "me")
	n, err := j.Adopt()
	if n != 2 || err == nil || !strings.Contains(err.Error(), "1 lines of "+path) {
		t.Errorf("%d runs taken over, %v", n, err)
	}
	kept, err := os.ReadFile(path + ".damaged")
	if err != nil || string(kept) != text {
		t.Errorf("kept %q, %v", kept, err)
	}
	if n, err := j.Adopt(); n != 0 || err != nil {
		t.Errorf("%d runs taken over again: %v", n, err)
	}
}

// TestDirectoryMayBeCalledAnything: its name is no pattern.
func TestDirectoryMayBeCalledAnything(t *testing.T) {
	for _, name := range []string{"app[1]", "app[", "*", "?"} {
		dir := filepath.Join(t.TempDir(), name)
		dead := open(t, dir, "shop", "dead")
		if err := dead.Begin("a", 1, 7); err != nil {
			t.Fatal(err)
		}
		if err := dead.Close(); err != nil {
			t.Fatal(err)
		}
		if n, err := open(t, dir, "shop", "me").Adopt(); n != 1 || err != nil {
			t.Errorf("%q: %d runs taken over: %v", name, n, err)
		}
	}
}

// TestRunThatCannotBeNotedIsRefused: no line on the disk, no entry.
func TestRunThatCannotBeNotedIsRefused(t *testing.T) {
	j := open(t, t.TempDir(), "shop", "me")
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := j.Begin("a", 1, 7); err == nil || len(j.Entries()) != 0 {
		t.Errorf("noted in a file that is closed: %v, %v", err, j.Entries())
	}
}

// TestRunIsInTheJournalOnce: what a dead process left of a run that this one has, too,
// because it goes on with it or took it over before, changes nothing.
func TestRunIsInTheJournalOnce(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, "shop", "me")
	if err := j.Begin("a", 1, 7); err != nil {
		t.Fatal(err)
	}
	left := `{"op":"begin","job":"a","tick":1,"begun":5}` + "\n" + `{"op":"end","job":"a","tick":2,"begun":5,"result":1}` + "\n"
	for want := 1; want >= 0; want-- { // the second time as if the file had not been removed
		if err := os.WriteFile(filepath.Join(dir, "shop.dead.journal"), []byte(left), 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := j.Adopt(); n != want || err != nil {
			t.Errorf("%d runs taken over, want %d: %v", n, want, err)
		}
	}
	want := []journal.Entry{{Job: "a", Tick: 1, Begun: 7, Alive: true}, {Job: "a", Tick: 2, Begun: 5, Result: json.RawMessage("1")}}
	if got := j.Entries(); !reflect.DeepEqual(got, want) {
		t.Errorf("entries %+v", got)
	}
}

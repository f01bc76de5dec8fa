package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/solotick/solotick/leader"
)

// Of replicas that have one label nothing is said that may be wrong.
func TestReplicasWithOneLabelAreNotMixedUp(t *testing.T) {
	s := standing{shared: true}
	s.share(leader.Board{
		Members:    []leader.Member{{Label: "web"}, {Label: "own"}, {Label: "idle"}, {Label: "web"}},
		Partitions: []leader.Leader{{Label: "web", Term: 1}, {Label: "own", Term: 2}, {Label: "web", Term: 3}, {}},
	}, []int{4, 5, 6, 7})
	got, err := json.Marshal(s.Replicas)
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"label":"web","partitions":null,"jobs":null},{"label":"own","partitions":1,"jobs":5},` +
		`{"label":"idle","partitions":0,"jobs":0},{"label":"web","partitions":null,"jobs":null}]`
	if string(got) != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	var text bytes.Buffer
	if err := s.print(&text); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "scheduler.label") {
		t.Errorf("no remedy in\n%s", &text)
	}
}

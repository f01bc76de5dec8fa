package storetest_test

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/storetest"
)

// bendEnv makes this test binary run the suite on a store without a guard.
const bendEnv = "STORETEST_BEND"

// TestGuards proves that the suite has teeth: for every guard there is a case
// that fails when the guard is gone, and says which rule is broken.
func TestGuards(t *testing.T) {
	if name := os.Getenv(bendEnv); name != "" {
		storetest.Run(t, func(*testing.T) storetest.Harness {
			b := newBent(bends[name].how)
			return storetest.Harness{Open: func(testing.TB) store.Store { return b }}
		})
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(bends)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bend := bends[name]
			cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestGuards$/"+regexpPath(bend.cases), "-test.timeout=60s", "-test.count=3") // random operations may pass a broken store by luck
			cmd.Env = append(os.Environ(), bendEnv+"="+name)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			switch {
			case err == nil:
				t.Fatalf("the suite passes a store without this guard:\n%s", out)
			case !errors.As(err, &exit):
				t.Fatal(err)
			case !strings.Contains(string(out), "broken rule: "+bend.rule):
				t.Fatalf("the suite fails, but does not name the rule %q:\n%s", bend.rule, out)
			}
		})
	}
}

// regexpPath anchors each element at its beginning, as -test.run reads it.
func regexpPath(cases string) string {
	parts := strings.Split(cases, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p)
	}
	return strings.Join(parts, "/")
}

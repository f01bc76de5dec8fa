package secret_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"go.uber.org/goleak"

	"github.com/solotick/solotick/configs/secret"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const canary = "kanarienvogel-4711"

type holder struct {
	Public secret.Value
	hidden secret.Value
	Ptr    *secret.Value
	Map    map[string]secret.Value
	List   []secret.Value
}

func TestNothingPrintsTheText(t *testing.T) {
	v := secret.New(canary)
	h := holder{v, v, &v, map[string]secret.Value{"k": v}, []secret.Value{v}}
	_ = h.hidden
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%10s", "%T", "%t", "%p", "%b"} {
		for _, arg := range []any{v, &v, h, &h, []any{v}, any(h), fmt.Errorf("wrapped: %v", v)} {
			fmt.Fprintf(&out, verb+"\n", arg)
		}
	}
	for _, marshal := range []func(any) ([]byte, error){json.Marshal, yaml.Marshal} {
		b, err := marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(b)
	}
	for _, handler := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(handler).Info("opened", "dsn", v, "config", h, "ptr", &v)
	}
	text := out.String()
	hex := fmt.Sprintf("%x", canary)
	if strings.Contains(text, canary) || strings.Contains(strings.ToLower(text), hex) {
		t.Fatalf("the text was printed:\n%s", text)
	}
	if !strings.Contains(text, secret.Redacted) {
		t.Fatal("nothing says that there is a value")
	}
}

func TestValueKeepsAndComparesTheText(t *testing.T) {
	var zero secret.Value
	if !zero.IsZero() || zero.Reveal() != "" || zero.String() != "" || !zero.Equal(secret.New("")) {
		t.Fatalf("zero value: %q %q", zero.Reveal(), zero.String())
	}
	a, b := secret.New("x"), secret.New("x")
	if a.Reveal() != "x" || !a.Equal(b) || a.Equal(zero) || !reflect.DeepEqual(a, b) {
		t.Fatal("equal texts must be equal values")
	}
	var read secret.Value
	if err := json.Unmarshal([]byte(`"x"`), &read); err != nil || !read.Equal(a) {
		t.Fatalf("read %q, %v", read.Reveal(), err)
	}
}

package configs_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/solotick/solotick/configs"
)

func parseCentre(text string) (*configs.Loaded, error) {
	return configs.Parse("f.yaml", []byte("namespace: shop\n"+text), configs.Options{
		LockDrivers: []string{"redis"}, CentreDrivers: []string{"etcd", "redis"},
		CheckCentre: func(_ string, decode func(any) error) error {
			var c struct {
				Addrs []string `yaml:"addrs"`
			}
			if err := decode(&c); err != nil {
				return err
			}
			if len(c.Addrs) == 0 {
				return errors.New("addrs: there are none")
			}
			return nil
		},
	})
}

// The centre is the store by default, has a section of its own, or is reached as the
// locks are.
func TestCentre(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, driver, addr string }{
		{"", "store", ""},
		{"degradation: {centre: {driver: none}}", "none", ""},
		{"degradation: {centre: {driver: redis, redis: {addrs: [\"a:1\"]}}}", "redis", "a:1"},
		{"locks: {driver: redis, redis: {addrs: [\"b:1\"]}}\ndegradation: {centre: {driver: redis}}", "redis", "b:1"},
		{"locks: {driver: redis, redis: {addrs: [\"b:1\"]}}\ndegradation: {centre: {driver: redis, redis: {addrs: [\"a:1\"]}}}", "redis", "a:1"},
	} {
		l, err := parseCentre(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		var part struct {
			Addrs []string `yaml:"addrs"`
		}
		if err := l.DecodeCentre(&part); err != nil || l.Degradation.Centre.Driver != c.driver || strings.Join(part.Addrs, " ") != c.addr {
			t.Errorf("%s: driver %s, part %+v, %v", c.text, l.Degradation.Centre.Driver, part, err)
		}
	}
	for text, want := range map[string]string{
		"degradation: {centre: {driver: etdc}}":                          "did you mean etcd?",
		"degradation: {centre: {driver: etcd}}":                          "write etcd: beside driver",
		"degradation: {centre: {driver: redis, redis: {}}}":              "there are none",
		"degradation: {centre: {driver: redis, redis: {adrs: [\"a\"]}}}": "addrs",
		"degradation: {centre: {driver: store, store: {}}}":              "has no settings",
		"degradation: {centre: {drivr: store}}":                          "driver",
	} {
		if _, err := parseCentre(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// Modes of the same file are taken up at once, another centre is not.
func TestDiffOfCentre(t *testing.T) {
	t.Parallel()
	must := func(text string) *configs.Loaded {
		l, err := parseCentre(text)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	a := must("degradation: {mode: store_only, centre: {driver: redis, redis: {addrs: [\"a:1\"]}}}")
	b := must("degradation: {mode: fail_fast, centre: {driver: redis, redis: {addrs: [\"b:1\"]}}}")
	if c := configs.Diff(a, b); !slices.Equal(c.Hot, []string{"degradation.mode"}) || !slices.Equal(c.Restart, []string{"degradation.centre.redis"}) {
		t.Errorf("%+v", c)
	}
	if c := configs.Diff(a, a); len(c.Hot)+len(c.Restart) > 0 {
		t.Errorf("the same file: %+v", c)
	}
}

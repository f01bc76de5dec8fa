package store_test

import (
	"fmt"
	"testing"

	"github.com/solotick/solotick/store"
)

// TestGoldenHashes pins the hashes: a release that computes another one for the
// same key would run every recorded tick again. The values were computed apart from
// this code: SHA-256 over "solotick/<domain>/v1" and the parts, each preceded by
// its length in 8 bytes, big endian.
func TestGoldenHashes(t *testing.T) {
	const tick = store.Millis(1_767_225_600_000) // 2026-01-01T00:00:00Z
	for _, c := range []struct {
		name string
		got  store.Hash
		want string
	}{
		{"cron", store.Key{Class: store.ClassCron, Job: "report", Tick: tick}.Hash(), "21503f41b3238b3e14bc49a3988d1b3c457079e55d38d1867e38a7e292cd64df"},
		{"shard", store.Key{Class: store.ClassCron, Job: "report", Tick: tick, Shard: 2}.Hash(), "1727592cda5829ccf86fbdb2c68ade4ee4b4c58a92f76d8bdc0920bbbce4e619"},
		{"manual", store.Key{Class: store.ClassManual, Job: "report", Request: "r-1"}.Hash(), "22b5ec5f3a2101179a798c75e0d0e816d170c264e4bb91505b13ba7b41ec9c96"},
		{"backfill", store.Key{Class: store.ClassBackfill, Job: "report", Tick: tick, Request: "r-1"}.Hash(), "c5779788985d47f2d7caacd281297a09f6205a7201ffa516d349806e1072d472"},
		{"key", store.Key{Class: store.ClassKey, Job: "send-invoice", Name: "order 7"}.Hash(), "b3da1a8d8fd16ae10681e7aadba6f764774a19e304aaba48f9339bc45fa8b2d6"},
		{"before the epoch", store.Key{Class: store.ClassBackfill, Job: "report", Tick: -1}.Hash(), "1557db5bf88da0b00d4f85535186fe9489cb73d3ae212f33c88a4f2b684deaf9"},
		{"active cron", store.ActiveCron("report", 0), "9c016cb800ff9e8fd5d8960738dc4fd458fe3149ff409317382ecd29f38e9f0f"},
		{"active cron, slot", store.ActiveCron("report", 3), "59514f8cf1c8124a2a5a1c9dec68cf0c97ee8f521afc815123992258f4e208bf"},
		{"active queue", store.ActiveQueue("send-invoice", "customer 9"), "f10d0e5740810637c9fea0a96bd476e685afa7da5a6f10fc45655554ba2216aa"},
		{"args", store.HashArgs([]byte(`{"order":7}`)), "2be9dbf6c7b1307933304a7d5337f2451e6767f9b04c4187843038bd839c268f"},
		{"no parts", store.HashOf("x"), "2a851bc24ec1b0092870a0b22d9ef757521015fa09ec6c2b877165bddc30fa8f"},
	} {
		if got := c.got.String(); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

// TestKeyHashes: keys that differ in any part differ in their hash.
func TestKeyHashes(t *testing.T) {
	keys := []store.Key{
		{Class: store.ClassCron},
		{Class: store.ClassManual},
		{Class: store.ClassBackfill},
		{Class: store.ClassKey},
		{Class: store.ClassCron, Job: "a"},
		{Class: store.ClassCron, Job: "A"},
		{Class: store.ClassCron, Job: "a "},
		{Class: store.ClassCron, Job: "a", Tick: 1},
		{Class: store.ClassCron, Job: "a1"},
		{Class: store.ClassCron, Job: "a", Tick: -1},
		{Class: store.ClassCron, Job: "a", Shard: 1},
		{Class: store.ClassCron, Job: "a", Name: "1"},
		{Class: store.ClassCron, Job: "a", Request: "1"},
		{Class: store.ClassCron, Job: "a", Name: "1", Request: "1"},
		{Class: store.ClassCron, Job: "a", Name: "11"},
	}
	seen := map[store.Hash]store.Key{}
	for _, k := range keys {
		if other, twice := seen[k.Hash()]; twice {
			t.Errorf("%+v and %+v have one hash", k, other)
		}
		seen[k.Hash()] = k
	}
	for _, pair := range [][2]store.Hash{
		{store.ActiveCron("a", 0), store.ActiveCron("a", 1)},
		{store.ActiveCron("a", 0), store.ActiveQueue("a", "0")},
		{store.ActiveQueue("a", "bc"), store.ActiveQueue("ab", "c")},
	} {
		if pair[0] == pair[1] {
			t.Errorf("two active keys have one hash: %s", pair[0])
		}
	}
}

func TestKeyString(t *testing.T) {
	for want, k := range map[string]store.Key{
		"report@2026-01-01T00:00:00.000Z": {Class: store.ClassCron, Job: "report", Tick: 1_767_225_600_000},
		"report@1970-01-01T00:00:00.001Z": {Class: store.ClassBackfill, Job: "report", Tick: 1, Request: "r"},
		"report#r-1":                      {Class: store.ClassManual, Job: "report", Request: "r-1"},
		"mail/7":                          {Class: store.ClassKey, Job: "mail", Name: "7"},
	} {
		if got := k.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := fmt.Sprint(store.ClassKey, store.Class(9)); got != "key Class(9)" {
		t.Errorf("classes: got %q", got)
	}
}

package message_test

import (
	"maps"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/idempotent/message"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCheckNamesTheField(t *testing.T) {
	good := func() message.Message {
		return message.Message{ID: "a", Topic: "t", Key: "käse", Payload: []byte{0, 255}, Headers: map[string]string{"X-Trace.id_1": "ü"}}
	}
	if err := good().Check(); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(m *message.Message){
		"ID is empty":        func(m *message.Message) { m.ID = "" },
		"ID \"a b\"":         func(m *message.Message) { m.ID = "a b" },
		"ID \"aaa":           func(m *message.Message) { m.ID = strings.Repeat("a", message.MaxID+1) },
		"ID \"\\x80":         func(m *message.Message) { m.ID = "\x80" },
		"Topic is empty":     func(m *message.Message) { m.Topic = "" },
		"Topic \"t\\x00\"":   func(m *message.Message) { m.Topic = "t\x00" },
		"Key \"\\xff\"":      func(m *message.Message) { m.Key = "\xff" },
		"Payload has":        func(m *message.Message) { m.Payload = make([]byte, message.MaxPayload+1) },
		"the name \"\"":      func(m *message.Message) { m.Headers[""] = "x" },
		"the name \"a b\"":   func(m *message.Message) { m.Headers["a b"] = "x" },
		"the value of split": func(m *message.Message) { m.Headers["split"] = "a\r\nb" },
		"Headers have":       func(m *message.Message) { m.Headers["long"] = strings.Repeat("a", message.MaxHeaders) },
	} {
		m := good()
		spoil(&m)
		if err := m.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// FuzzHeaders: what is written is read back the same, and nothing else is read.
func FuzzHeaders(f *testing.F) {
	f.Add("a", "b", "c", "<&> \u2028", []byte(`{}`))
	f.Add("", "\x00", "A.b-c_1", "\xff", []byte(`{"a":"b","a":"c"}`))
	f.Fuzz(func(t *testing.T, n1, v1, n2, v2 string, raw []byte) {
		h := map[string]string{n1: v1, n2: v2}
		if text, err := message.EncodeHeaders(h); err == nil {
			got, err := message.DecodeHeaders(text)
			if err != nil || !maps.Equal(got, h) {
				t.Errorf("%q was read back as %q, %v", h, got, err)
			}
		}
		if h, err := message.DecodeHeaders(raw); err == nil {
			text, err := message.EncodeHeaders(h)
			if err != nil || string(text) != string(raw) {
				t.Errorf("%q was read, and is written as %q, %v", raw, text, err)
			}
		}
	})
}

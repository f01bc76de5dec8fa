package secret

import (
	"encoding"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
)

// Redacted is what a Value that is set prints as.
const Redacted = "[redacted]"

// Value is a text that does not print. The zero Value is "not set" and prints as
// the empty text. Values are immutable and safe for concurrent use; compare them
// with Equal, since == compares identities.
type Value struct {
	// A pointer, because fmt calls no methods on unexported fields of a struct it
	// prints: there it shows an address.
	text *string
}

var (
	_ fmt.Formatter            = Value{}
	_ fmt.GoStringer           = Value{}
	_ json.Marshaler           = Value{}
	_ slog.LogValuer           = Value{}
	_ encoding.TextMarshaler   = Value{}
	_ encoding.TextUnmarshaler = (*Value)(nil)
)

// New wraps text. The empty text gives the zero Value.
func New(text string) Value {
	if text == "" {
		return Value{}
	}
	return Value{&text}
}

// Reveal is the text itself.
func (v Value) Reveal() string {
	if v.text == nil {
		return ""
	}
	return *v.text
}

// IsZero reports whether nothing is set.
func (v Value) IsZero() bool { return v.text == nil }

// Equal reports whether both hold the same text.
func (v Value) Equal(o Value) bool { return v.Reveal() == o.Reveal() }

// String is Redacted, or empty when nothing is set.
func (v Value) String() string {
	if v.IsZero() {
		return ""
	}
	return Redacted
}

// GoString is what %#v prints.
func (v Value) GoString() string { return fmt.Sprintf("secret.Value(%q)", v.String()) }

// Format prints String for every verb but %q and %#v, which quote it.
func (v Value) Format(f fmt.State, verb rune) {
	s := v.String()
	switch {
	case verb == 'v' && f.Flag('#'):
		s = v.GoString()
	case verb == 'q':
		s = fmt.Sprintf("%q", s)
	}
	_, _ = io.WriteString(f, s)
}

// MarshalJSON writes String.
func (v Value) MarshalJSON() ([]byte, error) { return json.Marshal(v.String()) }

// MarshalYAML writes String.
func (v Value) MarshalYAML() (any, error) { return v.String(), nil }

// MarshalText writes String.
func (v Value) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText takes the text as it is.
func (v *Value) UnmarshalText(text []byte) error {
	*v = New(string(text))
	return nil
}

// LogValue is String.
func (v Value) LogValue() slog.Value { return slog.StringValue(v.String()) }

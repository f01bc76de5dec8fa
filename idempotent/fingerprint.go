package idempotent

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/solotick/solotick/store"
)

// Fingerprint tells requests apart that come with one key. It is any hash of what
// makes a request the same: a SHA-256 of the caller's choice, or that of
// [FingerprintOf]. The zero Fingerprint says that the key alone tells.
type Fingerprint [sha256.Size]byte

// args is the fingerprint as it is stored with the run.
func (f Fingerprint) args() []byte {
	if f == (Fingerprint{}) {
		return nil
	}
	return f[:]
}

func (f Fingerprint) hash() store.Hash { return store.HashArgs(f.args()) }

// FingerprintOf is the SHA-256 of v's canonical JSON: the members of objects in
// the order of their names, numbers in one form (1, 1.0 and 1e0 are the same),
// without white space. A json.RawMessage is taken as JSON text.
func FingerprintOf(v any) (Fingerprint, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return Fingerprint{}, fmt.Errorf("idempotent: fingerprint: %w", err)
	}
	in := json.NewDecoder(bytes.NewReader(text))
	in.UseNumber()
	var tree any
	if err := in.Decode(&tree); err != nil {
		return Fingerprint{}, fmt.Errorf("idempotent: fingerprint: %w", err)
	}
	if _, err := in.Token(); !errors.Is(err, io.EOF) {
		return Fingerprint{}, errors.New("idempotent: fingerprint: more than one JSON value")
	}
	canonical, err := json.Marshal(normal(tree)) // sorts the members
	if err != nil {
		return Fingerprint{}, fmt.Errorf("idempotent: fingerprint: %w", err)
	}
	return sha256.Sum256(canonical), nil
}

// normal gives every number one form.
func normal(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name := range v {
			v[name] = normal(v[name])
		}
	case []any:
		for i := range v {
			v[i] = normal(v[i])
		}
	case json.Number:
		return number(v)
	}
	return v
}

// exact is where float64 stops to hold every integer.
const exact = 1 << 53

func number(n json.Number) json.Number {
	if !strings.ContainsAny(string(n), ".eE") && n != "-0" {
		return n // an integer of any size, which has one form
	}
	f, err := strconv.ParseFloat(string(n), 64)
	switch {
	case err != nil: // larger than a float64: as it is written
		return n
	case f == math.Trunc(f) && math.Abs(f) <= exact:
		return json.Number(strconv.FormatInt(int64(f), 10))
	}
	return json.Number(strconv.FormatFloat(f, 'g', -1, 64))
}

package idempotent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/solotick/solotick/store"
)

// MaxResult is the most bytes of an encoded result that a record keeps. It is
// store.MaxResult.
const MaxResult = store.MaxResult

// checkResult refuses a result that no record keeps.
func checkResult(b []byte) error {
	if len(b) > MaxResult {
		return fmt.Errorf("%w (%d bytes, the most is %d)", ErrTooLarge, len(b), MaxResult)
	}
	return nil
}

// Codec turns results into bytes. Its name is stored with them: up to 32 bytes
// without a line break.
type Codec interface {
	Name() string
	Encode(v any) ([]byte, error)
	Decode(data []byte, into any) error
}

// JSON is the codec of encoding/json, the default.
var JSON Codec = jsonCodec{}

type jsonCodec struct{}

func (jsonCodec) Name() string                       { return "json" }
func (jsonCodec) Encode(v any) ([]byte, error)       { return json.Marshal(v) }
func (jsonCodec) Decode(data []byte, into any) error { return json.Unmarshal(data, into) }

// bytesCodec is what Guard.Once stores: the bytes themselves.
const bytesCodec = "bytes"

// seal puts the codec's name before a result. The answer is never empty: an empty
// result in a record is one that was pruned.
func seal(codec string, payload []byte) ([]byte, error) {
	if err := checkResult(payload); err != nil {
		return nil, err
	}
	return append(append(make([]byte, 0, len(codec)+1+len(payload)), codec+"\n"...), payload...), nil
}

// unseal is the stored result, if the codec is the one it was stored with.
func unseal(codec string, stored []byte) ([]byte, error) {
	if len(stored) == 0 {
		return nil, ErrForgotten
	}
	name, payload, ok := bytes.Cut(stored, []byte("\n"))
	switch {
	case !ok || len(name) > 32:
		return nil, errors.New("idempotent: the stored result was not written by Once: use a job name that nothing else uses")
	case string(name) != codec:
		return nil, fmt.Errorf("idempotent: the result was stored with codec %q, and is read with %q: read it with the one it was stored with", name, codec)
	}
	return payload, nil
}

// checkCodec refuses names that a sealed result could not carry.
func checkCodec(c Codec) error {
	if n := c.Name(); n == "" || len(n) > 32 || bytes.ContainsRune([]byte(n), '\n') {
		return fmt.Errorf("idempotent: Codec: the name %q has to have 1 to 32 bytes and no line break", n)
	}
	return nil
}

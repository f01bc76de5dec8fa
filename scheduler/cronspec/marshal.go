package cronspec

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"time"
)

// stored is the text form of a Spec. All fields are written, so that a change of
// a default does not change the meaning of what is stored.
type stored struct {
	Expr   string     `json:"expr"`
	Zone   string     `json:"zone"`
	Gap    GapPolicy  `json:"gap"`
	Fold   FoldPolicy `json:"fold"`
	Offset string     `json:"offset"`
}

// Marshal returns the spec as one line of JSON, from which Unmarshal makes an
// equal Spec on any replica. Specs that mean the same by their canonical text have
// the same line.
func (s *Spec) Marshal() string {
	text, _ := json.Marshal(stored{ // strings always encode
		Expr: s.expr, Zone: s.zone.name, Gap: s.gap, Fold: s.fold,
		Offset: (time.Duration(s.offset) * time.Second).String(),
	})
	return string(text)
}

// Unmarshal reads what Marshal wrote. Unknown or missing parts are an *Error,
// since a spec understood in part would fire at other instants.
func Unmarshal(text string) (*Spec, error) {
	const field, remedy = "stored spec", "store what Marshal returned, or upgrade to the release that wrote it"
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	var in stored
	if err := decoder.Decode(&in); err != nil {
		return nil, refuse(field, text, remedy, "%v", err)
	}
	_, err := decoder.Token()
	trailing := !errors.Is(err, io.EOF)
	offset, err := time.ParseDuration(in.Offset)
	if err != nil || trailing || in.Zone == "" || in.Gap == "" || in.Fold == "" {
		return nil, refuse(field, text, remedy, "is not complete")
	}
	return Parse(in.Expr, Options{Zone: in.Zone, Gap: in.Gap, Fold: in.Fold, Offset: offset})
}

// Hash returns 32 hexadecimal digits that identify the canonical expression,
// zone, policies and offset together. It is stable across releases.
func (s *Spec) Hash() string {
	sum := sha256.Sum256([]byte(s.Marshal()))
	return hex.EncodeToString(sum[:16])
}

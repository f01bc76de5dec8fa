package httplock

import (
	"encoding/hex"
	"fmt"
	"time"

	"github.com/solotick/solotick/locks/driver"
)

// maxBody bounds what either side reads: a list of some thousand holders.
const maxBody = 4 << 20

// question is the body of every request.
type question struct {
	Key    string        `json:"key,omitempty"`
	Token  string        `json:"token,omitempty"`
	TTL    time.Duration `json:"ttl_ns,omitempty"`
	Label  string        `json:"label,omitempty"`
	Fence  int64         `json:"fence,omitempty"`
	Prefix string        `json:"prefix,omitempty"`
	Limit  int           `json:"limit,omitempty"`
}

// answer is the body of every response. Where the server has no clear answer, Error
// says why, and NotApplied that nothing was changed.
type answer struct {
	Fence      int64    `json:"fence,omitempty"`
	Released   int      `json:"released,omitempty"`
	Held       *holder  `json:"held,omitempty"` // by another
	Holders    []holder `json:"holders,omitempty"`
	NotOurs    bool     `json:"not_ours,omitempty"`
	Free       bool     `json:"free,omitempty"`
	Error      string   `json:"error,omitempty"`
	NotApplied bool     `json:"not_applied,omitempty"`
}

// holder is a driver.Holder on the wire.
type holder struct {
	Key       string        `json:"key"`
	Label     string        `json:"label"`
	Token     string        `json:"token"`
	Fence     int64         `json:"fence"`
	Since     time.Time     `json:"since"`
	Remaining time.Duration `json:"remaining_ns"`
	Waiters   int           `json:"waiters"`
}

func toWire(h driver.Holder) holder {
	return holder{h.Key, h.Label, h.Token.String(), h.Fence, h.Since, h.Remaining, h.Waiters}
}

func (h holder) driver() driver.Holder {
	token, _ := parseToken(h.Token) // the zero token where the server does not know it
	return driver.Holder{Key: h.Key, Label: h.Label, Token: token, Fence: h.Fence, Since: h.Since, Remaining: h.Remaining, Waiters: h.Waiters}
}

func asking(h driver.Hold) question {
	return question{Key: h.Key, Token: h.Token.String(), TTL: h.TTL, Label: h.Label, Fence: h.Fence}
}

func (q question) hold() (driver.Hold, error) {
	token, err := parseToken(q.Token)
	return driver.Hold{Request: driver.Request{Key: q.Key, Token: token, TTL: q.TTL, Label: q.Label}, Fence: q.Fence}, err
}

func parseToken(text string) (token driver.Token, err error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(token) {
		return token, fmt.Errorf("token: %d characters are no 32 hexadecimal digits", len(text))
	}
	return driver.Token(b), nil
}

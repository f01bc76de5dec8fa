// Package message is the seam between the outbox and what carries messages to a
// broker: the message, the interface that a publisher implements, and how headers are
// written down. It links the standard library only.
//
// A publisher takes a batch and answers for each message whether the broker has it. It
// may be given a message again that it has delivered before: delivery is at least once,
// and the message's ID tells the repeat.
package message

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The bounds of a message, in bytes.
const (
	MaxID      = 128
	MaxTopic   = 255
	MaxKey     = 512
	MaxPayload = 256 << 10 // put what is larger elsewhere, and its name into the message
	MaxHeaders = 8 << 10   // encoded
)

// Message is what is to be told. Two messages with the same ID are the same message.
type Message struct {
	// ID is the message's identity: the same for every attempt to add it and every
	// delivery, and another for every other message; such as run.EffectKey("mail").
	// Visible ASCII, at most MaxID bytes. Required.
	ID string
	// Topic says where it goes: the name of a stream, a topic, a kind. Required.
	Topic string
	// Key puts messages of a topic into an order: those with the same key are delivered
	// in the order in which they were added. Default none: no order.
	Key string
	// Payload is any bytes, at most MaxPayload.
	Payload []byte
	// Headers go with it: names of letters, digits, "-", "_" and ".", values of one
	// line. Default none.
	Headers map[string]string
}

// Publisher brings messages to where they go. It is used by one goroutine at a time.
type Publisher interface {
	// Publish tries to deliver the messages and answers with one error for each: nil if
	// and only if the broker has it for good. No two of a call have the same topic and
	// key, so their order does not matter. It returns when ctx ends.
	//
	// An error that matches ErrUnavailable says that the broker could not be asked, and
	// nothing about the message. Its text is stored: no secrets.
	Publish(ctx context.Context, msgs []Message) []error
}

// ErrUnavailable says that the broker cannot answer, or takes nothing at the moment.
// It is no fault of the message, which may have been delivered nevertheless.
var ErrUnavailable = errors.New("message: the broker is not available")

// Check reports the first field that cannot be sent, and what could.
func (m Message) Check() error {
	switch bad := strings.IndexFunc(m.ID, func(r rune) bool { return r <= ' ' || r > '~' }); {
	case m.ID == "":
		return errors.New("message: ID is empty: give what is the same for every attempt, such as run.EffectKey(\"mail\")")
	case len(m.ID) > MaxID || bad >= 0:
		return fmt.Errorf("message: ID %.40q: use at most %d visible ASCII characters, or a hash", m.ID, MaxID)
	}
	if m.Topic == "" {
		return errors.New("message: Topic is empty: name where it goes")
	}
	if err := checkText("Topic", m.Topic, MaxTopic); err != nil {
		return err
	}
	if err := checkText("Key", m.Key, MaxKey); err != nil {
		return err
	}
	if len(m.Payload) > MaxPayload {
		return fmt.Errorf("message: Payload has %d bytes, the most is %d: store it, and send where it is", len(m.Payload), MaxPayload)
	}
	_, err := EncodeHeaders(m.Headers)
	return err
}

func checkText(field, s string, most int) error {
	if len(s) > most || !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
		return fmt.Errorf("message: %s %.40q: use at most %d bytes of UTF-8 without control characters", field, s, most)
	}
	return nil
}

// EncodeHeaders writes headers down as JSON, the names in order; "{}" for none.
func EncodeHeaders(h map[string]string) ([]byte, error) {
	for name, value := range h {
		if !isName(name) {
			return nil, fmt.Errorf("message: Headers: the name %.40q: use letters, digits, \"-\", \"_\" and \".\", at most 128", name)
		}
		if !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl) {
			return nil, fmt.Errorf("message: Headers: the value of %s is not one line of UTF-8: encode it, or put it into the payload", name)
		}
	}
	if h == nil {
		h = map[string]string{}
	}
	text, err := json.Marshal(h)
	if err == nil && len(text) > MaxHeaders {
		err = fmt.Errorf("message: Headers have %d bytes, the most is %d: use the payload", len(text), MaxHeaders)
	}
	return text, err
}

func isName(s string) bool {
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.') {
			return false
		}
	}
	return s != "" && len(s) <= 128
}

// DecodeHeaders reads what EncodeHeaders wrote, nil for none, and refuses anything
// that it would not write.
func DecodeHeaders(text []byte) (map[string]string, error) {
	var h map[string]string
	if err := json.Unmarshal(text, &h); err != nil {
		return nil, fmt.Errorf("message: headers: %w", err)
	}
	again, err := EncodeHeaders(h)
	switch {
	case err != nil:
		return nil, err
	case !bytes.Equal(again, text):
		return nil, errors.New("message: headers: not in the form that EncodeHeaders writes")
	case len(h) == 0:
		return nil, nil
	}
	return h, nil
}

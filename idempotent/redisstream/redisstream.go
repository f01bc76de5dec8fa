// Package redisstream sends an outbox's messages to Redis Streams: each topic is a
// stream, each message an entry with the fields id, topic, key, payload and headers.
//
// Guarantees: a message is called delivered after Redis has answered its XADD; a call
// ends within Config.Timeout; the messages of a call travel in one pipeline, so a call
// costs one round trip on one server.
//
// Not guaranteed: one entry per message, since an answer can be lost: the field id tells
// a repeat, and package inbox lets a consumer act once. Nor that Redis keeps what it has
// acknowledged: that is for its appendfsync and its replicas to say.
package redisstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/idempotent/message"
)

// The fields of an entry. FieldKey and FieldHeaders are absent where a message has none.
const (
	FieldID      = "id"
	FieldTopic   = "topic"
	FieldKey     = "key"
	FieldPayload = "payload"
	FieldHeaders = "headers"
)

// Config of a publisher. The zero Config works.
type Config struct {
	// Stream names the stream of a topic. Default: the topic itself.
	Stream func(topic string) string
	// MaxLen bounds each stream: Redis drops the oldest entries beyond about so many,
	// read or not. Default 0: no bound.
	MaxLen int64
	// Timeout bounds one call. Default 3s.
	Timeout time.Duration
}

// Publisher implements message.Publisher.
type Publisher struct {
	rdb redis.UniversalClient
	cfg Config
}

var _ message.Publisher = (*Publisher)(nil)

// New makes a publisher on rdb, which stays the caller's to close. It sends nothing.
// Set ContextTimeoutEnabled: true in the client's options: without it a call can last
// for the client's ReadTimeout and retries.
func New(rdb redis.UniversalClient, cfg Config) (*Publisher, error) {
	switch {
	case rdb == nil:
		return nil, errors.New("redisstream: the client is nil: make one with redis.NewUniversalClient")
	case cfg.MaxLen < 0:
		return nil, fmt.Errorf("redisstream: Config.MaxLen of %d: use 0, for no bound, or more", cfg.MaxLen)
	case cfg.Timeout < 0:
		return nil, fmt.Errorf("redisstream: Config.Timeout of %v: use 0, for the default, or more", cfg.Timeout)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 3 * time.Second
	}
	if cfg.Stream == nil {
		cfg.Stream = func(topic string) string { return topic }
	}
	return &Publisher{rdb, cfg}, nil
}

// Publish implements message.Publisher. Redis's own answer about an entry, such as
// WRONGTYPE, counts against the message; no answer, and one that says that Redis takes
// nothing now (OOM, READONLY, LOADING, ...), matches message.ErrUnavailable.
func (p *Publisher) Publish(ctx context.Context, msgs []message.Message) []error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	errs := make([]error, len(msgs))
	cmds := make([]*redis.StringCmd, len(msgs))
	pipe := p.rdb.Pipeline()
	for i := range msgs {
		values, err := Values(msgs[i])
		if err != nil {
			errs[i] = err
			continue
		}
		cmds[i] = pipe.XAdd(ctx, &redis.XAddArgs{Stream: p.cfg.Stream(msgs[i].Topic), MaxLen: p.cfg.MaxLen, Approx: p.cfg.MaxLen > 0, Values: values})
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, cmd := range cmds {
		if cmd == nil {
			continue
		}
		switch err := cmd.Err(); {
		case err == nil && cmd.Val() == "":
			errs[i] = fmt.Errorf("redisstream: no answer: %w", message.ErrUnavailable)
		case err == nil:
		case refused(err):
			errs[i] = fmt.Errorf("redisstream: %w", err)
		default:
			errs[i] = fmt.Errorf("redisstream: %w: %w", message.ErrUnavailable, err)
		}
	}
	return errs
}

// passing are the answers of a server that takes nothing at the moment.
var passing = []string{
	"OOM", "READONLY", "LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "NOREPLICAS", "MISCONF",
	"NOAUTH", "WRONGPASS", "NOPERM", "ERR max number of clients",
}

// refused reports whether Redis answered, about this very entry.
func refused(err error) bool {
	var answer redis.Error
	if !errors.As(err, &answer) {
		return false
	}
	for _, head := range passing {
		if strings.HasPrefix(answer.Error(), head) {
			return false
		}
	}
	return true
}

// Values are the fields of the message's entry, name and value in turns.
func Values(m message.Message) ([]any, error) {
	headers, err := message.EncodeHeaders(m.Headers)
	if err != nil {
		return nil, err
	}
	values := []any{FieldID, m.ID, FieldTopic, m.Topic}
	if m.Key != "" {
		values = append(values, FieldKey, m.Key)
	}
	values = append(values, FieldPayload, m.Payload)
	if len(m.Headers) > 0 {
		values = append(values, FieldHeaders, headers)
	}
	return values, nil
}

// Parse makes the message of an entry again, for its consumer. An entry that no
// publisher wrote is an error.
func Parse(values map[string]any) (message.Message, error) {
	field := func(name string) string {
		s, _ := values[name].(string)
		return s
	}
	m := message.Message{ID: field(FieldID), Topic: field(FieldTopic), Key: field(FieldKey)}
	if payload := field(FieldPayload); payload != "" {
		m.Payload = []byte(payload)
	}
	if text := field(FieldHeaders); text != "" {
		var err error
		if m.Headers, err = message.DecodeHeaders([]byte(text)); err != nil {
			return message.Message{}, fmt.Errorf("redisstream: %w", err)
		}
	}
	if err := m.Check(); err != nil {
		return message.Message{}, fmt.Errorf("redisstream: not an entry of an outbox: %w", err)
	}
	return m, nil
}

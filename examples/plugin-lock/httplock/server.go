package httplock

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/locks/driver"
)

// answerTimeout bounds what one request may take of the driver behind the server.
const answerTimeout = 5 * time.Second

// Engine is the driver behind the server.
type Engine interface {
	driver.Driver
	driver.Inspector
}

// NewHandler serves the locks of engine to those who send the token; the zero token
// lets everybody in. The engine stays the caller's to close, after the server.
func NewHandler(engine Engine, token secret.Value) http.Handler {
	mux := http.NewServeMux()
	for path, act := range map[string]func(context.Context, question) (answer, error){
		"/acquire": func(ctx context.Context, q question) (answer, error) {
			h, err := q.hold()
			if err != nil {
				return answer{}, driver.NotApplied(err)
			}
			g, err := engine.Acquire(ctx, h.Request)
			return answer{Fence: g.Fence}, err
		},
		"/renew": func(ctx context.Context, q question) (answer, error) {
			h, err := q.hold()
			if err != nil {
				return answer{}, driver.NotApplied(err)
			}
			g, err := engine.Renew(ctx, h)
			return answer{Fence: g.Fence}, err
		},
		"/release": func(ctx context.Context, q question) (answer, error) {
			h, err := q.hold()
			if err != nil {
				return answer{}, driver.NotApplied(err)
			}
			r, err := engine.Release(ctx, h)
			return answer{Released: int(r)}, err
		},
		"/inspect": func(ctx context.Context, q question) (answer, error) {
			h, err := engine.Inspect(ctx, q.Key)
			return answer{Holders: []holder{toWire(h)}}, err
		},
		"/list": func(ctx context.Context, q question) (answer, error) {
			hs, err := engine.List(ctx, q.Prefix, q.Limit)
			a := answer{}
			for _, h := range hs {
				a.Holders = append(a.Holders, toWire(h))
			}
			return a, err
		},
		"/force-release": func(ctx context.Context, q question) (answer, error) {
			r, err := engine.ForceRelease(ctx, q.Key)
			return answer{Released: int(r)}, err
		},
	} {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			if !allowed(r, token) {
				write(w, http.StatusUnauthorized, answer{Error: "the token is missing or wrong", NotApplied: true})
				return
			}
			var q question
			if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&q); err != nil {
				write(w, http.StatusBadRequest, answer{Error: "the body is no question", NotApplied: true})
				return
			}
			// It ends also when the client has gone, so that what was given up is not done.
			ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
			defer cancel()
			a, err := act(ctx, q)
			status, a := verdict(a, err)
			write(w, status, a)
		})
	}
	return mux
}

// allowed compares in constant time, since the answer goes over a network.
func allowed(r *http.Request, token secret.Value) bool {
	return token.IsZero() || subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+token.Reveal())) == 1
}

// verdict keeps what the driver knows apart from what it does not.
func verdict(a answer, err error) (int, answer) {
	held := (*driver.HeldError)(nil)
	switch {
	case err == nil:
		return http.StatusOK, a
	case errors.As(err, &held):
		h := toWire(held.Holder)
		return http.StatusOK, answer{Held: &h}
	case errors.Is(err, driver.ErrNotOurs):
		return http.StatusOK, answer{NotOurs: true}
	case errors.Is(err, driver.ErrFree):
		return http.StatusOK, answer{Free: true}
	}
	return http.StatusServiceUnavailable, answer{Error: err.Error(), NotApplied: driver.IsNotApplied(err)}
}

func write(w http.ResponseWriter, status int, a answer) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(a) // the client takes half an answer for none
}

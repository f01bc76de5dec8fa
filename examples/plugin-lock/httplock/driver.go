package httplock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/locks/driver"
)

// Driver is the client. It is safe for concurrent use.
type Driver struct {
	url    string
	token  secret.Value
	client *http.Client
}

var (
	_ driver.Driver    = (*Driver)(nil)
	_ driver.Inspector = (*Driver)(nil)
	_ driver.Limiter   = (*Driver)(nil)
	_ io.Closer        = (*Driver)(nil)
)

// Limits implements [driver.Limiter]: below that, a request and its answer take too
// large a part of a TTL.
func (d *Driver) Limits() driver.Limits { return driver.Limits{MinTTL: 100 * time.Millisecond} }

// Acquire implements [driver.Driver].
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	a, err := d.ask(ctx, "acquire", asking(driver.Hold{Request: r}))
	switch {
	case err != nil:
		return driver.Grant{}, err
	case a.Held != nil:
		return driver.Grant{}, &driver.HeldError{Holder: a.Held.driver()}
	}
	return driver.Grant{Fence: a.Fence}, nil
}

// Renew implements [driver.Driver].
func (d *Driver) Renew(ctx context.Context, h driver.Hold) (driver.Grant, error) {
	a, err := d.ask(ctx, "renew", asking(h))
	switch {
	case err != nil:
		return driver.Grant{}, err
	case a.NotOurs:
		return driver.Grant{}, driver.ErrNotOurs
	}
	return driver.Grant{Fence: a.Fence}, nil
}

// Release implements [driver.Driver].
func (d *Driver) Release(ctx context.Context, h driver.Hold) (driver.Released, error) {
	a, err := d.ask(ctx, "release", asking(h))
	return driver.Released(a.Released), err
}

// Inspect implements [driver.Inspector].
func (d *Driver) Inspect(ctx context.Context, key string) (driver.Holder, error) {
	a, err := d.ask(ctx, "inspect", question{Key: key})
	switch {
	case err != nil:
		return driver.Holder{}, err
	case a.Free || len(a.Holders) != 1:
		return driver.Holder{}, driver.ErrFree
	}
	return a.Holders[0].driver(), nil
}

// List implements [driver.Inspector].
func (d *Driver) List(ctx context.Context, prefix string, limit int) ([]driver.Holder, error) {
	a, err := d.ask(ctx, "list", question{Prefix: prefix, Limit: limit})
	var hs []driver.Holder
	for _, h := range a.Holders {
		hs = append(hs, h.driver())
	}
	return hs, err
}

// ForceRelease implements [driver.Inspector].
func (d *Driver) ForceRelease(ctx context.Context, key string) (driver.Released, error) {
	a, err := d.ask(ctx, "force-release", question{Key: key})
	return driver.Released(a.Released), err
}

// ask sends one request. An error means that the outcome is unknown, unless it is
// marked as not applied.
func (d *Driver) ask(ctx context.Context, what string, q question) (answer, error) {
	if ctx.Err() != nil {
		return answer{}, driver.NotApplied(fmt.Errorf("httplock: %s: %w", what, context.Cause(ctx)))
	}
	body, err := json.Marshal(q)
	if err != nil {
		return answer{}, driver.NotApplied(fmt.Errorf("httplock: %s: %w", what, err))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+"/"+what, bytes.NewReader(body))
	if err != nil {
		return answer{}, driver.NotApplied(fmt.Errorf("httplock: %s: %w", what, err))
	}
	req.GetBody = nil // then net/http does not send it a second time by itself
	if !d.token.IsZero() {
		req.Header.Set("Authorization", "Bearer "+d.token.Reveal())
	}
	resp, err := d.client.Do(req)
	if err != nil {
		err = fmt.Errorf("httplock: %s: %w", what, err)
		if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
			return answer{}, driver.NotApplied(err)
		}
		return answer{}, err
	}
	defer resp.Body.Close()
	var a answer
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxBody)).Decode(&a); err != nil {
		return answer{}, fmt.Errorf("httplock: %s: status %d: %w", what, resp.StatusCode, err)
	}
	if resp.StatusCode == http.StatusOK {
		return a, nil
	}
	err = fmt.Errorf("httplock: %s: status %d: %s", what, resp.StatusCode, a.Error)
	if a.NotApplied {
		err = driver.NotApplied(err)
	}
	return answer{}, err
}

// Close implements io.Closer.
func (d *Driver) Close() error {
	d.client.CloseIdleConnections()
	return nil
}

package gormstore_test

import (
	"errors"
	"testing"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/store"
)

// A change that the server has committed and whose answer is lost is answered by its
// repeat, and stands once.
func TestThrowSwitchOfLostAnswer(t *testing.T) {
	onServers(t, func(t *testing.T, srv server) {
		proxy := faultproxy.Start(t, srv.addr)
		prefix := tables()
		far, near := newStore(t, srv.open(t, srv.dsnAt(proxy.Addr()), 2), prefix), newStore(t, srv.db(t, 2), prefix)
		commit := map[string]string{"postgres": "commit", "mariadb": "COMMIT"}[srv.name]
		trap := proxy.SwallowReply([]byte(commit))
		c := store.SwitchChange{Fleet: true, By: "ann", Reason: "odd", To: "{}", Token: store.NewID(1)}
		if _, err := far.ThrowSwitch(t.Context(), space, c); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("err %v, want ErrUnavailable", err)
		}
		<-trap.Fired()
		got, err := far.ThrowSwitch(t.Context(), space, c)
		if err != nil {
			t.Fatal(err)
		}
		all, _, err := near.SwitchChanges(t.Context(), space, true, 10)
		if err != nil || len(all) != 1 || all[0] != got {
			t.Errorf("changes %+v, %v, want one: %+v", all, err, got)
		}
	})
}

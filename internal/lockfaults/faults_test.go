package lockfaults

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/solotick/solotick/locks"
)

// busy is what a loaded machine may add to a bound that is not about safety.
const busy = 30 * time.Second

func TestBackends(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a minute")
	}
	for _, s := range sites {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			newCrew(t, s.open(t)).plan()
		})
	}
}

// plan is what every backend goes through.
func (c *crew) plan() {
	c.Helper()
	holders := c.crewOf("h0", "h1", "h2", "h3", "h4", "h5")
	waiter := c.crewOf("w")[0]

	c.lostByTime(holders, waiter)
	c.lostByServer(holders[:3], waiter)
	c.restarted(holders[0], waiter)
	c.serverAway(holders[1], waiter)
	c.storm(holders[:3])
	c.nothingLeft(holders, waiter)
	c.report()
}

func (c *crew) report() {
	c.Helper()
	f := c.judge()
	c.Logf("seed %d; late %v\nFIGURES | %s | %v | %d | %d | %s | %s | %s | %s | %s | %s |", c.seed, f.late, filepath.Base(c.Name()), c.ttl, f.grants,
		f.lostByTime, round(f.margin), f.byServer, round(f.toldAwake), f.waiting, f.away, f.leftBehind)
}

// round shows a figure, or that it was not taken.
func round(d time.Duration) string {
	if d == math.MaxInt64 {
		return "-"
	}
	return d.Round(100 * time.Microsecond).String()
}

// lostByTime cuts a holder off in every way, freezes one, and kills one. All happen
// at once, since what takes time is waiting for the leases to end.
func (c *crew) lostByTime(holders []*member, waiter *member) {
	c.Helper()
	frozen := holders[len(cuts)]
	keys := make([]string, len(holders))
	granted := make([]event, len(holders))
	for i, h := range holders {
		name := "frozen"
		if i < len(cuts) {
			name = cuts[i].name
		}
		keys[i] = c.key(name)
		granted[i] = h.hold(keys[i])
	}
	dead := c.crewOf("killed")[0]
	keys = append(keys, c.key("killed"))
	granted = append(granted, dead.hold(keys[len(holders)]))
	for _, key := range keys {
		waiter.acquire(key)
	}
	for _, key := range keys {
		c.awaitWaiter(waiter, key)
	}
	c.countWaiting(holders[0], waiter, keys[0], len(keys))

	for i, f := range cuts {
		holders[i].cut(f)
	}
	frozen.freeze()
	// One that is frozen in the middle of a write keeps the others from it for as long.
	for c.blocked != nil && c.blocked() {
		frozen.thaw()
		frozen.freeze()
	}
	dead.kill()

	next := make([]event, len(keys))
	for i, key := range keys {
		if i == len(cuts) && c.keepsFrozen {
			continue
		}
		next[i] = c.await(waiter, "granted", key)
		c.await(waiter, "wrote", key)
	}
	woken := frozen.thaw()
	told := c.await(frozen, "lost", keys[len(cuts)])
	c.told.toldAwake = time.Duration(told.At - woken)
	if c.told.toldAwake > busy {
		c.Errorf("told %v after it woke", c.told.toldAwake)
	}
	if next[len(cuts)].At == 0 {
		next[len(cuts)] = c.await(waiter, "granted", keys[len(cuts)])
		c.await(waiter, "wrote", keys[len(cuts)])
	}
	for i, h := range holders {
		c.await(h, "lost", keys[i]) // in time, says judge
		if next[i].Fence <= granted[i].Fence {
			c.Errorf("%s: fence went from %d to %d", keys[i], granted[i].Fence, next[i].Fence)
		}
		c.refused(h, keys[i])
		h.heal()
	}
	for _, key := range keys {
		waiter.giveBack(key)
	}
}

// refused demands that the resource refuses the former holder.
func (c *crew) refused(m *member, key string) {
	c.Helper()
	asked := now()
	m.do(command{Do: "write", Key: key})
	if e := c.awaitSince(m, "wrote", key, asked); e.OK {
		c.Errorf("%s: the former holder's effect passed: %v", key, e)
	}
}

// countWaiting bounds what a process sends that waits for n keys, once it stands in
// their lines, while the holder of one renews it twice.
func (c *crew) countWaiting(holder, waiter *member, key string, n int) {
	c.Helper()
	renewedTwice := func() {
		since := now()
		holder.do(command{Do: "settle", Key: key})
		c.awaitSince(holder, "settled", key, since)
	}
	renewedTwice()
	before, since := waiter.traffic(), now()
	renewedTwice()
	rate := perSecond(waiter.traffic()-before, since)
	c.told.waiting = fmt.Sprintf("%.1f/s for %d", rate, n)
	if rate > float64((10*n+20)*max(1, len(c.addrs))) {
		c.Errorf("a process that waits for %d keys makes %.1f round trips and connections a second", n, rate)
	}
}

func perSecond(n int, since int64) float64 {
	return float64(n) / time.Duration(now()-since).Seconds()
}

// lostByServer deletes the record of one holder, forces the release of another, and
// flushes the server under the third, where it can be.
func (c *crew) lostByServer(holders []*member, waiter *member) {
	c.Helper()
	ways := []struct {
		name string
		take func(key string)
	}{
		{"deleted", func(key string) { c.remove(c, key) }},
		{"forced", c.force},
		{"flushed", func(string) { c.flush(c) }},
	}
	for i, way := range ways {
		if way.name == "flushed" && c.flush == nil {
			continue
		}
		for !c.takenFrom(holders[i], waiter, way.name, way.take) {
			c.Log("a starved holder lost the key by itself: once more")
		}
	}
}

// takenFrom makes the server drop a holder's grant; false if the holder lost it before.
func (c *crew) takenFrom(h, waiter *member, name string, take func(key string)) bool {
	c.Helper()
	key := c.key(name)
	granted := h.hold(key)
	waiter.acquire(key)
	c.awaitWaiter(waiter, key)
	at := c.takes(key, func() { take(key) })
	lost, next := c.await(h, "lost", key), c.await(waiter, "granted", key)
	c.await(waiter, "wrote", key)
	c.refused(h, key)
	waiter.release(key)
	if lost.At < at {
		return false
	}
	if !lost.OK {
		c.Errorf("%s: lost as %q, want by the server", key, lost.Text)
	}
	told, overlap := time.Duration(lost.At-at), time.Duration(max(0, lost.At-next.At))
	if told > c.interval()+busy {
		c.Errorf("%s: told after %v, the renewal interval is %v", key, told, c.interval())
	}
	if next.Fence <= granted.Fence {
		c.Errorf("%s: fence went from %d to %d", key, granted.Fence, next.Fence)
	}
	c.told.byServer += fmt.Sprintf("%s %s (%s) ", name, round(told), round(overlap))
	return true
}

// restarted kills the server and starts it again at once. The holder goes on, or was
// told.
func (c *crew) restarted(holder, waiter *member) {
	c.Helper()
	if c.restart == nil {
		return
	}
	key := c.key("restarted")
	granted := holder.hold(key)
	waiter.acquire(key)
	c.awaitWaiter(waiter, key)
	c.restart()
	since := now()
	holder.do(command{Do: "settle", Key: key})
	if e := c.awaitSince(holder, "settled", key, since); e.OK {
		holder.giveBack(key)
	} else {
		c.await(holder, "lost", key)
	}
	if next := c.await(waiter, "granted", key); next.Fence <= granted.Fence {
		c.Errorf("%s: fence went from %d to %d", key, granted.Fence, next.Fence)
	}
	c.await(waiter, "wrote", key)
	c.refused(holder, key)
	waiter.giveBack(key)
}

// serverAway takes the server away until the holder has been told, which must not
// make anybody storm it, and brings it back.
func (c *crew) serverAway(holder, waiter *member) {
	c.Helper()
	key := c.key("away")
	granted := holder.hold(key)
	waiter.acquire(key)
	c.awaitWaiter(waiter, key)
	before, since := holder.traffic()+waiter.traffic(), now()
	c.down()
	c.await(holder, "lost", key)
	rate := perSecond(holder.traffic()+waiter.traffic()-before, since)
	c.told.away = fmt.Sprintf("%.1f/s", rate)
	if rate > float64(100*max(1, len(c.addrs))) {
		c.Errorf("two processes make %.1f round trips and connections a second while the server is away", rate)
	}
	c.up()
	if next := c.await(waiter, "granted", key); next.Fence <= granted.Fence {
		c.Errorf("%s: fence went from %d to %d", key, granted.Fence, next.Fence)
	}
	c.await(waiter, "wrote", key)
	c.refused(holder, key)
	waiter.giveBack(key)
}

// rounds is how many things happen in the storm.
func rounds(t *testing.T) int {
	t.Helper()
	text := os.Getenv("LOCKFAULTS_ROUNDS")
	if text == "" {
		return 5
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("LOCKFAULTS_ROUNDS: %v", err)
	}
	return n
}

// storm lets processes contend for two keys while one thing after the other happens
// to them and to the server, as the seed says.
func (c *crew) storm(ms []*member) {
	c.Helper()
	keys := []string{c.key("storm"), c.key("storm")}
	looped := append([]*member(nil), ms...)
	for _, m := range looped {
		m.do(command{Do: "loop", Keys: keys, Seed: c.dice.Uint64()})
	}
	for n := range rounds(c.T) {
		i := c.dice.IntN(len(looped))
		if n%2 == 0 { // things happen to holders rather
			i = max(0, slices.IndexFunc(looped, c.holds))
		}
		m := looped[i]
		switch what := c.dice.IntN(12); {
		case what < 4:
			m.cut(cuts[c.dice.IntN(len(cuts))])
			c.pass(c.ttl)
			c.pass(2 * c.ttl)
			m.heal()
		case what < 6:
			m.cut(hiccups[c.dice.IntN(len(hiccups))])
			c.pass(c.ttl / 2)
			m.heal()
		case what < 8:
			m.freeze()
			c.pass(2 * c.ttl)
			m.thaw()
		case what < 9:
			m.kill()
			looped[i] = c.crewOf(fmt.Sprintf("s%d", n))[0]
			looped[i].do(command{Do: "loop", Keys: keys, Seed: c.dice.Uint64()})
		case what < 10 && c.restart != nil:
			c.restart()
			c.pass(c.ttl)
		case what < 11 && c.flush != nil:
			c.takes("", func() { c.flush(c) })
			c.pass(c.ttl)
		default:
			c.takes(keys[0], func() { c.force(keys[0]) })
		}
		c.pass(c.ttl / 2)
	}
	for _, m := range looped {
		m.do(command{Do: "halt"})
		c.await(m, "halted", "")
	}
	for _, m := range looped[:len(ms)] {
		if m.name[0] == 's' { // takes no part in what follows
			m.quit()
		}
	}
}

// holds says whether the process holds a key, as far as it has told.
func (c *crew) holds(m *member) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	open := 0
	for _, e := range c.record.events {
		switch {
		case e.Proc != m.name:
		case e.What == "granted":
			open = e.N
		case e.N == open && (e.What == "lost" || e.What == "releasing"):
			open = 0
		}
	}
	return open != 0
}

// pass lets up to d pass, in which what the plan has done takes its effect.
func (c *crew) pass(d time.Duration) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), d*time.Duration(1+c.dice.IntN(1000))/1000)
	defer cancel()
	<-ctx.Done() // real time: the storm is made of it
}

// quit ends the process in good order.
func (m *member) quit() {
	m.c.Helper()
	m.gone = true
	m.do(command{Do: "quit"})
	if e := m.c.await(m, "bye", ""); !e.OK {
		m.c.Errorf("%s did not end in good order: %s", m.name, e.Text)
	}
}

// nothingLeft ends some processes in good order and kills a holder and a waiter. What
// they leave behind goes by itself.
func (c *crew) nothingLeft(holders []*member, waiter *member) {
	c.Helper()
	key := c.key("left")
	holder := c.crewOf("last")[0]
	holder.hold(key)
	waiter.acquire(key)
	c.awaitWaiter(waiter, key)
	holder.kill()
	waiter.kill()
	since := time.Now()
	for _, h := range holders {
		if !h.gone {
			h.quit()
		}
	}
	tick := time.NewTicker(c.ttl / 20)
	defer tick.Stop()
	for left := c.left(); len(left) > 0; left = c.left() {
		if time.Since(since) > c.ttl+c.lingers+busy {
			c.Errorf("%v after the end there are still %q", time.Since(since), left)
			break
		}
		<-tick.C
	}
	c.told.leftBehind = round(time.Since(since))
}

// left is what there still is of locks at the backend.
func (c *crew) left() (all []string) {
	c.Helper()
	holders, err := c.operator.List(within(c), "", 100)
	for end := time.Now().Add(patience); errors.Is(err, locks.ErrUnavailable) && time.Now().Before(end); {
		holders, err = c.operator.List(within(c), "", 100)
	}
	if err != nil {
		c.Fatal(err)
	}
	for _, h := range holders {
		all = append(all, h.Key)
	}
	if c.leftovers != nil {
		all = append(all, c.leftovers(c)...)
	}
	return all
}

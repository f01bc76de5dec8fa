package etcdlock

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/solotick/solotick/locks/driver"
)

// A key of etcd is the driver's prefix, the escaped lock key, and the token of the
// request, each after a slash. The token is drawn for every request, so no two
// requests share a key, and any process finds the key of a hold by what the hold
// says of itself.

var escaper, unescaper = strings.NewReplacer("%", "%25", "/", "%2F"), strings.NewReplacer("%25", "%", "%2F", "/")

// dir is what the keys of all who hold key or wait for it begin with.
func (d *Driver) dir(key string) string { return d.prefix + escaper.Replace(key) + "/" }

// path is the key of one of them.
func (d *Driver) path(key string, token driver.Token) string { return d.dir(key) + token.String() }

// parse is the reverse of path; not ok means that another program made the key.
func (d *Driver) parse(path []byte) (key string, token driver.Token, ok bool) {
	rest, ok := strings.CutPrefix(string(path), d.prefix)
	if !ok {
		return "", token, false
	}
	slash := strings.IndexByte(rest, '/')
	if slash < 1 || len(rest)-slash-1 != 2*len(token) {
		return "", token, false
	}
	text := rest[slash+1:]
	if n, err := hex.Decode(token[:], []byte(text)); err != nil || n != len(token) || token.String() != text {
		return "", token, false
	}
	return unescaper.Replace(rest[:slash]), token, true
}

// record is the value of a key, for people.
type record struct {
	Label string `json:"label"`
	Asked int64  `json:"asked_ms"` // by the clock of the one who asked
}

func newRecord(r driver.Request) string {
	// wall clock: shown to people, and never compared with anything
	text, _ := json.Marshal(record{r.Label, time.Now().UnixMilli()}) // cannot fail for these types
	return string(text)
}

// ours reports whether a key is one of a request: without a lease it would block
// for ever, and who names it otherwise does not stand in our line.
func (d *Driver) ours(kv *mvccpb.KeyValue) bool {
	if kv.Lease != 0 {
		if _, _, ok := d.parse(kv.Key); ok {
			return true
		}
	}
	d.stray(string(kv.Key))
	return false
}

// line is those of kvs that are ours, in order of arrival.
func (d *Driver) line(kvs []*mvccpb.KeyValue) []*mvccpb.KeyValue {
	kvs = slices.DeleteFunc(slices.Clone(kvs), func(kv *mvccpb.KeyValue) bool { return !d.ours(kv) })
	slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) })
	return kvs
}

// holder describes the first of a line.
func (d *Driver) holder(line []*mvccpb.KeyValue) driver.Holder {
	kv := line[0]
	var h driver.Holder
	h.Key, h.Token, _ = d.parse(kv.Key)
	h.Fence, h.Waiters = kv.CreateRevision, len(line)-1
	var rec record
	if json.Unmarshal(kv.Value, &rec) == nil {
		h.Label, h.Since = rec.Label, time.UnixMilli(rec.Asked).UTC()
	}
	return h
}

// maxStrays bounds what is remembered of keys that were reported.
const maxStrays = 1000

// stray reports a key that is not ours, once.
func (d *Driver) stray(path string) {
	d.mu.Lock()
	_, known := d.strays[path]
	full := len(d.strays) >= maxStrays
	if !known && !full {
		d.strays[path] = struct{}{}
	}
	d.mu.Unlock()
	if !known && !full {
		d.log.Warn("etcdlock: ignoring a key that no lock made: it has no lease, or another name than ours have; remove it, or choose another prefix", "key", path)
	}
}

// created is the condition that the key is the one made at the revision; 0 stands
// for any.
func created(path string, rev int64) clientv3.Cmp {
	if rev == 0 {
		return clientv3.Compare(clientv3.CreateRevision(path), ">", 0)
	}
	return clientv3.Compare(clientv3.CreateRevision(path), "=", rev)
}

var byArrival = clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)

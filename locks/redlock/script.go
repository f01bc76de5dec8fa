package redlock

import (
	"crypto/sha1" //nolint:gosec // the name that Redis gives a script, not a protection
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/solotick/solotick/internal/mutation"
)

// counterLife is how long the counter of a key outlives its last use. One made
// anew begins at the node's clock, above what it was.
const counterLife = 24 * time.Hour

type script struct{ text, sha string }

// The keys are the record of the lock on this node, its counter, and the mark of a
// request that was taken back. A record is the token of 32 digits, the fence, y or n
// for whether that is the grant's and not only this node's number, the node's time
// in microseconds, and the label. Every script may be repeated.
var (
	acquireScript = compile(luaCounter, luaAcquire)
	confirmScript = compile(luaCounter, luaConfirm)
	renewScript   = compile(luaCounter, theirs(luaRenew, mutation.On("redlock-renew-token")))
	releaseScript = compile(theirs(luaRelease, mutation.On("redlock-release-token")))
	forceScript   = compile(luaCounter, luaForce)
	lookScript    = compile(luaLook)
)

// theirs puts the question whether a record has another token in place.
func theirs(text string, broken bool) string {
	ask := "token ~= ARGV[1]"
	if broken {
		ask = "false"
	}
	return strings.Replace(text, "$THEIRS", ask, 1)
}

func compile(parts ...string) *script {
	s := &script{text: strings.ReplaceAll(strings.Join(parts, ""), "$LIFE", fmt.Sprint(counterLife.Milliseconds()))}
	sum := sha1.Sum([]byte(s.text)) //nolint:gosec // see the import
	s.sha = hex.EncodeToString(sum[:])
	return s
}

const luaCounter = `
local function micros()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end
local function counter() return tonumber(redis.call('GET', KEYS[2]) or '0') or 0 end
local function text(n) return string.format('%.0f', n) end
local function raise(fence)
  if counter() < fence then redis.call('SET', KEYS[2], text(fence), 'PX', $LIFE) end
end
local function write(token, fence, whole, since, label, ttl)
  redis.call('SET', KEYS[1], token .. ' ' .. fence .. ' ' .. whole .. ' ' .. since .. ' ' .. label, 'PX', ttl)
end
local function read(v) return string.match(v, '^(%x+) (%d+) ([yn]) (%d+) (.*)$') end
`

// A node that has started lately, other than as the caller knows it, may have
// forgotten a grant: it gives none.
const luaAcquire = `
local token, ttl, label, youth, known = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local info = redis.call('INFO', 'server')
local id = string.match(info, 'run_id:(%x+)')
if redis.call('EXISTS', KEYS[3]) == 1 then return {3, id} end
local v = redis.call('GET', KEYS[1])
if v then
  if string.sub(v, 1, 32) ~= token then return {0, id, v, redis.call('PTTL', KEYS[1])} end
  redis.call('PEXPIRE', KEYS[1], ttl)
  local _, fence = read(v)
  return {1, id, fence}
end
local up = tonumber(string.match(info, 'uptime_in_seconds:(%d+)'))
if known ~= '*' and known ~= id and up * 1000 < youth then return {2, id} end
local us = micros()
local fence = math.max(counter() + 1, us)
raise(fence)
write(token, text(fence), 'n', text(us), label, ttl)
return {1, id, text(fence)}
`

const luaConfirm = `
local v = redis.call('GET', KEYS[1])
if not v or string.sub(v, 1, 32) ~= ARGV[1] then return 0 end
local token, _, _, since, label = read(v)
raise(tonumber(ARGV[2]))
write(token, ARGV[2], 'y', since, label, ARGV[3])
return 1
`

// Renew answers 1 for renewed, 0 for the key is another's, and 2 for there is no
// record. It makes one where it is asked to: a majority of the others had it then.
const luaRenew = `
local v = redis.call('GET', KEYS[1])
if not v then
  if ARGV[5] ~= '1' or redis.call('EXISTS', KEYS[3]) == 1 then return 2 end
  raise(tonumber(ARGV[2]))
  write(ARGV[1], ARGV[2], 'y', text(micros()), ARGV[4], ARGV[3])
  return 1
end
local token, fence, whole, since, label = read(v)
if $THEIRS or whole == 'y' and fence ~= ARGV[2] then return 0 end
if whole == 'y' then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
else
  raise(tonumber(ARGV[2]))
  write(token, ARGV[2], 'y', since, label, ARGV[3])
end
return 1
`

// The mark makes an acquire of the same token that comes late do nothing. The end of a
// grant is told to who waits, if the user may do that. What is only taken back is not: it
// would wake those whose tries are taken back in turn, without end.
const luaRelease = `
if ARGV[3] ~= '0' then redis.call('SET', KEYS[3], '', 'PX', ARGV[3]) end
local v = redis.call('GET', KEYS[1])
if not v then return 2 end
local token, fence, whole = string.match(v, '^(%x+) (%d+) ([yn])')
if $THEIRS or ARGV[2] ~= '0' and whole == 'y' and fence ~= ARGV[2] then return 3 end
redis.call('DEL', KEYS[1])
if ARGV[2] ~= '0' then redis.pcall('PUBLISH', KEYS[1], '') end
return 1
`

const luaForce = `
raise(math.max(counter() + 1, micros()))
local freed = redis.call('DEL', KEYS[1])
if freed == 1 then redis.pcall('PUBLISH', KEYS[1], '') end
return freed
`

const luaLook = `
return {redis.call('GET', KEYS[1]) or '', redis.call('PTTL', KEYS[1])}
`

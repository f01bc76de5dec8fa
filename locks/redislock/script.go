package redislock

import (
	"crypto/sha1" //nolint:gosec // the name that Redis gives a script, not a protection
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/solotick/solotick/internal/mutation"
)

const (
	// fenceLife is how long the counter of a key outlives its last use. A counter
	// made anew begins at the server's clock, above what it was.
	fenceLife = 24 * time.Hour
	// A waiter in line looks between looksMost and looksLeast apart, to show that it
	// lives and whether a message was lost: the longer the line the more seldom, so
	// that all of it together looks looksPerSecond times a second. One that has not
	// done so for presence is not served.
	looksMost      = 3 * time.Second
	looksLeast     = 20 * time.Second
	looksPerSecond = 3
	presence       = 50 * time.Second
)

type script struct{ name, text, sha string }

// scripts are the requests to Redis. Every one of them may be repeated with the
// same arguments: clients repeat what they got no answer to.
type scripts struct{ acquire, enqueue, renew, release, force, look, probe *script }

// newScripts makes the scripts. In a cluster PUBLISH counts the subscribers of one
// node only, so its count does not tell whether a waiter listens.
//
// The keys of all but renew and look are the record of the lock, its counter, its
// line of waiters in order, and what each of them wants; of look, the record and the
// line. A record is the token of 32 digits, the fence, the server's time in
// microseconds, and the label; a counter is the last fence and the id of the last
// release.
func newScripts(cluster bool) *scripts {
	mine := "string.sub(v, 1, 32) == ARGV[1]"
	granted := "string.match(v, '^%x+ (%d+)')"
	held, ours, renewed := "v", "token == ARGV[1] and (ARGV[2] == '0' or fence == ARGV[2])", "v and string.sub(v, 1, 32) == ARGV[a + 1] and "+granted+" == ARGV[a + 2]"
	if mutation.On("redis-exclusion") {
		held = "false"
	}
	if mutation.On("redis-release-token") {
		ours = "true"
	}
	if mutation.On("redis-renew-token") {
		renewed = "v"
	}
	text := strings.NewReplacer(
		"$FENCE_LIFE", fmt.Sprint(fenceLife.Milliseconds()),
		"$PRESENCE", fmt.Sprint(presence.Milliseconds()),
		"$DEAF", fmt.Sprint(!cluster),
		"$HELD", held, "$OURS", ours, "$RENEWED", renewed, "$MINE", mine, "$GRANTED", granted,
	)
	compile := func(name string, parts ...string) *script {
		s := &script{name: name, text: text.Replace(strings.Join(parts, ""))}
		sum := sha1.Sum([]byte(s.text)) //nolint:gosec // see the import
		s.sha = hex.EncodeToString(sum[:])
		return s
	}
	return &scripts{
		acquire: compile("acquire", luaTime, luaGrant, luaGrantFree, luaServe, luaAcquire),
		enqueue: compile("enqueue", luaTime, luaGrant, luaGrantFree, luaServe, luaEnqueue),
		renew:   compile("renew", luaRenew),
		release: compile("release", luaGiveBack, luaTime, luaGrant, luaServe, luaRelease),
		force:   compile("force release", luaTime, luaGrant, luaServe, luaForce),
		look:    compile("look", luaLook),
		probe:   compile("probe", luaProbe),
	}
}

const luaTime = `
local function micros()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end
`

const luaGrant = `
local function counted(us)
  local now = string.format('%.0f', us)
  local last, id = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+)(.*)$')
  if last and tonumber(last) >= us then return string.format('%.0f', tonumber(last) + 1), id, now end
  return now, id or '', now
end
local function record(token, ttl, label, fence, id, now)
  redis.call('SET', KEYS[2], fence .. id, 'PX', $FENCE_LIFE)
  redis.call('SET', KEYS[1], token .. ' ' .. fence .. ' ' .. now .. ' ' .. label, 'PX', ttl)
end
local function grant(token, ttl, label)
  local fence, id, now = counted(micros())
  record(token, ttl, label, fence, id, now)
  return {1, fence}
end
`

// Where nobody has the key and nobody waits, which is the common case, the script
// ends here and has not made the functions of the line.
const luaGrantFree = `
local v = redis.call('GET', KEYS[1])
if not ($HELD) and redis.call('EXISTS', KEYS[3]) == 0 then return grant(ARGV[1], ARGV[2], ARGV[3]) end
`

// each calls f for the waiters in line that live, until it returns true. Serve
// gives the free key to the first one that its message reaches, and tells the
// next one that it is the first in line now, so that somebody watches the TTL. The
// waiter that runs the script is called me, and hears by the answer.
const luaServe = `
local me
local function drop(token)
  redis.call('ZREM', KEYS[3], token)
  redis.call('HDEL', KEYS[4], token)
end
local function each(f)
  local at, now = 0, nil
  while true do
    local token = redis.call('ZRANGE', KEYS[3], at, at)[1]
    if not token then return false end
    now = now or micros()
    local alive, ttl, channel, label = string.match(redis.call('HGET', KEYS[4], token) or '', '^(%d+) (%d+) (%S+) (.*)$')
    if not alive or now - alive > $PRESENCE * 1000 then
      drop(token)
    elseif f(token, ttl, channel, label, now) then
      return true
    else
      at = at + 1
    end
  end
end
local function reaches(channel, message)
  return redis.call('PUBLISH', channel, message) > 0 or not $DEAF
end
local function head(ttl)
  each(function(token, _, channel) return reaches(channel, 'first ' .. token .. ' ' .. ttl) end)
end
local function serve()
  local life
  local served = each(function(token, ttl, channel, label, now)
    local fence, id, since = counted(now)
    if token ~= me and not reaches(channel, 'granted ' .. token .. ' ' .. fence) then return false end
    record(token, ttl, label, fence, id, since)
    drop(token)
    life = ttl
    return true
  end)
  if served then head(life) end
  return served
end
`

const luaAcquire = `
if not ($HELD) then
  if not serve() then return grant(ARGV[1], ARGV[2], ARGV[3]) end
  v = redis.call('GET', KEYS[1])
end
if $MINE then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {1, $GRANTED}
end
return {0, v, redis.call('PTTL', KEYS[1])}
`

const luaEnqueue = `
local token, ttl, label, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if not v or not ($MINE) then
  local now = micros()
  if not redis.call('ZSCORE', KEYS[3], token) then
    local last = redis.call('ZRANGE', KEYS[3], -1, -1, 'WITHSCORES')[2]
    local place = now
    if last and tonumber(last) >= now then place = tonumber(last) + 1 end
    redis.call('ZADD', KEYS[3], string.format('%.0f', place), token)
  end
  redis.call('HSET', KEYS[4], token, string.format('%.0f', now) .. ' ' .. ttl .. ' ' .. channel .. ' ' .. label)
  redis.call('PEXPIRE', KEYS[3], $PRESENCE)
  redis.call('PEXPIRE', KEYS[4], $PRESENCE)
  me = token
  if not v then serve() end
  v = redis.call('GET', KEYS[1])
end
if v and $MINE then
  drop(token)
  redis.call('PEXPIRE', KEYS[1], ttl)
  return {1, $GRANTED}
end
if ARGV[5] == '1' then redis.call('PUBLISH', channel, 'seen ' .. token) end
return {0, v or '', redis.call('PTTL', KEYS[1]), redis.call('ZRANK', KEYS[3], token), redis.call('ZCARD', KEYS[3]),
  string.match(redis.call('GET', KEYS[2]) or '', '^%d+') or '0'}
`

const luaRenew = `
local out = {}
for i = 1, #KEYS do
  local a = (i - 1) * 3
  local v = redis.call('GET', KEYS[i])
  if $RENEWED then
    redis.call('PEXPIRE', KEYS[i], ARGV[a + 3])
    out[i] = 1
  else
    out[i] = 0
  end
end
return out
`

// The release of a key for which nobody stands in line, the common case, ends here.
const luaGiveBack = `
local v = redis.call('GET', KEYS[1])
local token, fence = string.match(v or '', '^(%x+) (%d+)')
local ours = v and ($OURS)
if ours then
  redis.call('DEL', KEYS[1])
  redis.call('SET', KEYS[2], fence .. ' ' .. ARGV[3], 'PX', $FENCE_LIFE)
  if redis.call('EXISTS', KEYS[3]) == 0 then
    redis.call('PUBLISH', KEYS[1] .. ':w', '')
    return 1
  end
end
`

// A fence of 0 gives back whatever the token has, its place in line too.
const luaRelease = `
if ARGV[2] == '0' and redis.call('ZREM', KEYS[3], ARGV[1]) == 1 then
  redis.call('HDEL', KEYS[4], ARGV[1])
  if v and not ours then head(redis.call('PTTL', KEYS[1])) end
end
if ours then
  if not serve() then redis.call('PUBLISH', KEYS[1] .. ':w', '') end
  return 1
end
local id = string.match(redis.call('GET', KEYS[2]) or '', ' (%x+)$')
if not v then serve() end
if id == ARGV[3] then return 1 end
return v and 3 or 2
`

const luaForce = `
local fence = counted(micros())
redis.call('SET', KEYS[2], fence, 'PX', $FENCE_LIFE)
local was = redis.call('DEL', KEYS[1])
if not serve() then redis.call('PUBLISH', KEYS[1] .. ':w', '') end
return was
`

const luaLook = `
return {redis.call('GET', KEYS[1]) or '', redis.call('PTTL', KEYS[1]), redis.call('ZCARD', KEYS[2])}
`

// The probe tries every command on a record of its own that is gone at once.
const luaProbe = `
local denied = {}
local function try(name, ...)
  local r = redis.pcall(name, ...)
  if type(r) == 'table' and r.err then denied[#denied + 1] = name end
end
try('TIME')
try('SET', KEYS[1], '', 'PX', 1000)
try('GET', KEYS[1])
try('PTTL', KEYS[1])
try('PEXPIRE', KEYS[1], 1000)
try('DEL', KEYS[1])
try('PUBLISH', KEYS[1] .. ':w', '')
try('EXISTS', KEYS[2])
try('ZADD', KEYS[2], 1, 'a')
try('ZSCORE', KEYS[2], 'a')
try('ZRANK', KEYS[2], 'a')
try('ZCARD', KEYS[2])
try('ZRANGE', KEYS[2], 0, 0)
try('ZREM', KEYS[2], 'a')
try('HSET', KEYS[3], 'a', '')
try('HGET', KEYS[3], 'a')
try('HDEL', KEYS[3], 'a')
return denied
`

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
	// A release that comes so soon after its grant does not renew the counter's life,
	// where it goes together with others.
	fenceFresh = time.Hour
	// A waiter in line looks between looksMost and looksLeast apart, to show that it
	// lives and whether a message was lost: the longer the line the more seldom, so
	// that all of it together looks looksPerSecond times a second. In a cluster one that
	// has not done so for presence is not served.
	looksMost      = 2 * time.Second
	looksLeast     = 20 * time.Second
	looksPerSecond = 3
	presence       = 50 * time.Second
	// lineGrace is how much longer than the holder's TTL a line lives at the least; a
	// quarter of the TTL where that is more.
	lineGrace = time.Second
)

// script is one request to Redis. Its keys are those of the locks that it is about,
// each with every suffix.
type script struct {
	name, text, sha string
	suffixes        []string
	head            []byte // how its request begins, after the number of parts
	// many does the same for several locks; nil where there is no such script. Own is
	// the number of the first arguments, which each lock has for itself.
	many *script
	own  int
	// hands is set where the script tells somebody that the key is theirs. It is sent
	// behind a ping: Redis writes to the connections in the reverse order in which
	// something first came up for them, so that whoever is told hears it before who has
	// released has the answer, which the next holder would wait for.
	hands bool
}

// scripts are the requests to Redis. Every one of them may be repeated with the
// same arguments: clients repeat what they got no answer to.
type scripts struct{ acquire, enqueue, renew, release, force, look, probe *script }

// newScripts makes the scripts. In a cluster PUBLISH counts the subscribers of one
// node only, so its count does not tell whether a waiter listens.
//
// A record is the token of 32 digits, the fence of 16, which is the server's time in
// microseconds where that has grown, 'q' where somebody stands in line, and the label.
// A counter is the last fence, 'q' where somebody stands in line, 'x' where tokens
// are refused, and the id of the last release. A free key nobody waits for, which is
// the common case, so costs no look at the line.
func newScripts(cluster bool) *scripts {
	held, ifFree := "v", "'NX', "
	ours, oursOf, renewed := "v and string.sub(v, 1, 32) == ARGV[1] and (ARGV[2] == '0' or string.sub(v, 34, 49) == ARGV[2])",
		"v and sub(v, 1, 32) == token and sub(v, 34, 49) == fence",
		"v and string.sub(v, 1, 32) == ARGV[a + 1] and string.sub(v, 34, 49) == ARGV[a + 2]"
	refused := "string.sub(flags, 2, 2) == 'x' and redis.call('ZSCORE', KEYS[4], ARGV[1])"
	if mutation.On("redis-exclusion") {
		held = "false"
	}
	if mutation.On("redis-exclusion-together") {
		ifFree = ""
	}
	if mutation.On("redis-release-token") {
		ours = "v"
	}
	if mutation.On("redis-release-together") {
		oursOf = "v"
	}
	if mutation.On("redis-renew-token") {
		renewed = "v"
	}
	if mutation.On("redis-late-acquire") {
		refused = "false"
	}
	text := strings.NewReplacer(
		"$FENCE_LIFE", fmt.Sprint(fenceLife.Milliseconds()),
		"$FRESH", fmt.Sprint(int64(fenceFresh.Seconds())),
		"$IF_FREE", ifFree,
		"$PRESENCE", fmt.Sprint(presence.Milliseconds()),
		"$GRACE", fmt.Sprint(lineGrace.Milliseconds()),
		"$DEAF", fmt.Sprint(!cluster),
		"$HELD", held, "$OURS_OF", oursOf, "$OURS", ours, "$RENEWED", renewed, "$REFUSED", refused,
	)
	compile := func(name string, suffixes []string, parts ...string) *script {
		s := &script{name: name, text: text.Replace(strings.Join(parts, "")), suffixes: suffixes}
		sum := sha1.Sum([]byte(s.text)) //nolint:gosec // see the import
		s.sha = hex.EncodeToString(sum[:])
		s.head = appendText(appendText(nil, "evalsha"), s.sha)
		return s
	}
	all := []string{"", ":f", ":q", ":x", ":h"}
	if !cluster {
		all = all[:4]
	}
	made := &scripts{
		acquire: compile("acquire", all, luaAcquireFree, luaCounter, luaServe, luaAcquire),
		enqueue: compile("enqueue", all, luaAcquireFree, luaCounter, luaKeep, luaServe, luaEnqueue),
		renew:   compile("renew", all[:1], luaKeep, luaRenew),
		release: compile("release", all, luaGiveBack, luaHandOver, luaCounter, luaServe, luaRelease),
		force:   compile("force release", all, luaCounter, luaServe, luaForce),
		look:    compile("look", []string{"", ":q"}, luaLook),
		probe:   compile("probe", []string{"", ":q", ":h"}, luaProbe),
	}
	made.release.hands, made.force.hands = true, true
	if !cluster { // where the keys of a script share a slot
		one := func(parts ...string) string {
			return "local function one(KEYS, ARGV)\n" + strings.Join(parts, "") + "end\n"
		}
		made.acquire.own, made.release.own = 1, 2
		made.acquire.many = compile("acquire", all[:2], one(luaAcquireFree, luaCounter, luaServe, luaAcquire), luaAcquireMany)
		made.release.many = compile("release", all[:2], one(luaGiveBack, luaHandOver, luaCounter, luaServe, luaRelease), luaReleaseMany)
	}
	return made
}

// Where nobody has the key, nobody waits and no token is refused, the script ends
// here and has not made the functions of the line.
const luaAcquireFree = `
local v = redis.call('GET', KEYS[1])
if not ($HELD) then
  local c, t = redis.call('GET', KEYS[2]), redis.call('TIME')
  local fence = t[1] .. string.sub('00000' .. t[2], -6)
  if not c or string.sub(c, 17, 18) == '--' and string.sub(c, 1, 16) < fence then
    redis.call('SET', KEYS[2], fence .. (c and string.sub(c, 17) or '--'), 'PX', $FENCE_LIFE)
    redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. fence .. '- ' .. ARGV[3], 'PX', ARGV[2])
    return fence
  end
end
`

// counter reads the counter, and the server's time in microseconds; after is the fence
// that comes after the last one. Grant sets both keys; a hand-over sets the record only,
// whose fence may be ahead of the counter's then.
const luaCounter = `
local last, flags, id, now
local function counter()
  local c, t = redis.call('GET', KEYS[2]) or '', redis.call('TIME')
  last, flags, id = string.match(c, '^(%d+)([-q][-x])(.*)$')
  last, flags, id = last or '0000000000000000', flags or '--', id or ''
  now = t[1] * 1000000 + t[2]
  if string.sub(flags, 2, 2) == 'x' and redis.call('EXISTS', KEYS[4]) == 0 then flags = string.sub(flags, 1, 1) .. '-' end
end
local function count(fence, q)
  last = fence
  flags = q .. string.sub(flags, 2, 2)
  redis.call('SET', KEYS[2], last .. flags .. id, 'PX', $FENCE_LIFE)
end
local function after()
  return string.format('%016.0f', math.max(tonumber(last) + 1, now))
end
local function grant(fence, q, token, ttl, label)
  count(fence, q)
  redis.call('SET', KEYS[1], token .. ' ' .. fence .. q .. ' ' .. label, 'PX', ttl)
  return fence
end
`

// Serve gives the free key to the first in line that its message reaches. The waiter
// that runs the script is called me, and hears by the answer. A member of the line is
// the waiter's token, its TTL, its channel and its label.
//
// Somebody must watch for the end of the holder's TTL. That is the last in line, who
// stays for longest and need not be told anew when the key is handed over: tell says
// to him that comes to be the last, or is not the last any more.
//
// In a cluster a waiter lives that has looked within the time that it left in :h.
const luaServe = `
local me
local function alive(member)
  if $DEAF then return true end
  local till = redis.call('ZSCORE', KEYS[5], member)
  return till and tonumber(till) >= now
end
local function leave(member)
  if not $DEAF then redis.call('ZREM', KEYS[5], member) end
end
local function parts(member)
  local ttl, channel, label = string.match(member, '^%x+ (%d+) (%S+) (.*)$')
  return string.sub(member, 1, 32), ttl, channel, label
end
local function tell(kind, member, number)
  local token, _, channel = parts(member)
  redis.call('PUBLISH', channel, kind .. token .. number)
end
local function serve()
  if string.sub(flags, 1, 1) == 'q' then
    local fence = after()
    while true do
      local member = redis.call('ZPOPMIN', KEYS[3])[1]
      if not member then break end
      local token, ttl, channel, label = parts(member)
      local there = alive(member) and
        (token == me or redis.call('PUBLISH', channel, 'g' .. token .. fence) > 0 or not $DEAF)
      leave(member)
      if there then
        grant(fence, 'q', token, ttl, label)
        return true
      end
    end
    count(last, '-')
  end
  return false
end
`

const luaAcquire = `
if not ($HELD) then
  counter()
  if $REFUSED then return {-1} end
  if ARGV[4] == '0' or not serve() then
    return grant(after(), string.sub(flags, 1, 1), ARGV[1], ARGV[2], ARGV[3])
  end
  v = redis.call('GET', KEYS[1])
end
if string.sub(v, 1, 32) == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return string.sub(v, 34, 49)
end
return {0, v, redis.call('PTTL', KEYS[1])}
`

const luaEnqueue = `
local token, ttl, member, channel = ARGV[1], ARGV[2], ARGV[4], ARGV[5]
counter()
if $REFUSED then return {-1} end
if not v and string.sub(flags, 1, 1) == '-' then return grant(after(), '-', token, ttl, ARGV[3]) end
if not v or string.sub(v, 1, 32) ~= token then
  if not redis.call('ZSCORE', KEYS[3], member) then
    local before, place = redis.call('ZRANGE', KEYS[3], -1, -1, 'WITHSCORES'), now
    if before[1] then
      place = math.max(now, tonumber(before[2]) + 1)
      tell('b', before[1], 0)
    end
    redis.call('ZADD', KEYS[3], string.format('%.0f', place), member)
  end
  if $DEAF then
    keep(KEYS[3], math.max(ttl, redis.call('PTTL', KEYS[1])))
  else
    redis.call('ZADD', KEYS[5], string.format('%.0f', now + $PRESENCE * 1000), member)
    redis.call('PEXPIRE', KEYS[3], $PRESENCE)
    redis.call('PEXPIRE', KEYS[5], $PRESENCE)
  end
  if string.sub(flags, 1, 1) ~= 'q' then count(last, 'q') end
  if v and string.match(v, '^%x+ %d+%- ') then redis.call('SETRANGE', KEYS[1], 49, 'q') end
  if not v then
    me = token
    serve()
    v = redis.call('GET', KEYS[1])
  end
end
if v and string.sub(v, 1, 32) == token then
  redis.call('ZREM', KEYS[3], member)
  leave(member)
  redis.call('PEXPIRE', KEYS[1], ttl)
  return string.sub(v, 34, 49)
end
if ARGV[6] == '1' then redis.call('PUBLISH', channel, 's' .. token) end
return {0, v or '', redis.call('PTTL', KEYS[1]), redis.call('ZRANK', KEYS[3], member), redis.call('ZCARD', KEYS[3]), last}
`

// Keep lets a line live a little longer than the grant that it waits for, so that its
// order is there when the last in line looks. A line of which nobody lives so goes with
// the holder, and before that with the holder's next renewal, which looks whether the
// first in line is there.
const luaKeep = `
local function keep(line, ttl)
  redis.call('PEXPIRE', line, math.floor(ttl + math.max(ttl / 4, $GRACE)))
end
`

const luaRenew = `
local function attend(line, ttl)
  keep(line, ttl)
  while true do
    local member = redis.call('ZRANGE', line, 0, 0)[1]
    if not member then return end
    local channel = string.match(member, '^%x+ %d+ (%S+) ')
    if redis.call('PUBLISH', channel, 's' .. string.sub(member, 1, 32)) > 0 then return end
    redis.call('ZREM', line, member)
  end
end
local out = {}
for i = 1, #KEYS do
  local a = (i - 1) * 3
  local v = redis.call('GET', KEYS[i])
  if $RENEWED then
    redis.call('PEXPIRE', KEYS[i], ARGV[a + 3])
    -- Not in a cluster, where all keys of a script are to be named.
    if $DEAF and string.sub(v, 50, 50) == 'q' then attend(KEYS[i] .. ':q', ARGV[a + 3]) end
    out[i] = 1
  else
    out[i] = 0
  end
end
return out
`

// The release of a key for which nobody stands in line, the common case, ends here.
// It has an id only where a client may repeat it.
const luaGiveBack = `
local v = redis.call('GET', KEYS[1])
local ours = $OURS
if ours and ARGV[3] == '' and ARGV[2] ~= '0' and string.sub(v, 50, 50) == '-' then
  redis.call('DEL', KEYS[1])
  if redis.call('PEXPIRE', KEYS[2], $FENCE_LIFE) == 0 then
    redis.call('SET', KEYS[2], ARGV[2] .. '--', 'PX', $FENCE_LIFE)
  end
  return 1
end
`

// The release of a key for which somebody stands in line, mostly, ends here: the holder
// had the last fence, so that the counter need not be read.
const luaHandOver = `
if ours and ARGV[3] == '' and ARGV[2] ~= '0' and $DEAF then
  local t = redis.call('TIME')
  local fence = t[1] .. string.sub('00000' .. t[2], -6)
  local member = ARGV[2] < fence and redis.call('ZPOPMIN', KEYS[3])[1]
  if member then
    local ttl, channel, label = string.match(member, '^%x+ (%d+) (%S+) (.*)$')
    local token = string.sub(member, 1, 32)
    if redis.call('PUBLISH', channel, 'g' .. token .. fence) > 0 then
      redis.call('SET', KEYS[1], token .. ' ' .. fence .. 'q ' .. label, 'PX', ttl)
      return 1
    end
  end
end
`

// A fence of 0 gives back whatever the token has, its place in line too. Where a request
// of the token may be under way, that is refused when it comes.
const luaRelease = `
local was = ours and string.sub(v, 34, 49) or '0000000000000000'
counter()
if last < was then last = was end
if ARGV[5] ~= '0' then
  local ms = math.floor(now / 1000)
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', ms)
  redis.call('ZADD', KEYS[4], ms + ARGV[5], ARGV[1])
  redis.call('PEXPIRE', KEYS[4], math.max(ARGV[5], redis.call('PTTL', KEYS[4])))
  flags = string.sub(flags, 1, 1) .. 'x'
end
local q = string.sub(flags, 1, 1)
local again = ARGV[3] ~= '' and id == ARGV[3]
if ours then id = ARGV[3] end
count(last, q)
if q == 'q' and ARGV[2] == '0' and redis.call('ZREM', KEYS[3], ARGV[4]) == 1 then
  leave(ARGV[4])
  local behind = redis.call('ZRANGE', KEYS[3], -1, -1)[1]
  if behind and v and not ours then tell('l', behind, redis.call('PTTL', KEYS[1])) end
end
if ours then redis.call('DEL', KEYS[1]) end
if ours or not v then serve() end
if ours or again then return 1 end
return v and 3 or 2
`

// The scripts for several locks do at once what is common, and leave the rest to the
// script for one. What fails for one of them is the answer to that one only. They have
// first the arguments that all share, then for each lock its own.
const luaAcquireMany = `
local call, sub = redis.call, string.sub
local out, t = {}, call('TIME')
local fence = t[1] .. sub('00000' .. t[2], -6)
local ttl, label, fair = ARGV[1], ARGV[2], ARGV[3]
local function try(key, counter, token)
  local c = redis.pcall('GET', counter)
  if (not c or type(c) == 'string' and sub(c, 17, 18) == '--' and sub(c, 1, 16) < fence) and
    call('SET', key, token .. ' ' .. fence .. '- ' .. label, $IF_FREE'PX', ttl) then
    call('SET', counter, fence .. (c and sub(c, 17) or '--'), 'PX', $FENCE_LIFE)
    return fence
  end
  return one({key, counter, key .. ':q', key .. ':x'}, {token, ttl, label, fair})
end
for i = 1, #KEYS, 2 do
  local ok, answer = pcall(try, KEYS[i], KEYS[i + 1], ARGV[(i + 7) / 2])
  out[#out + 1] = ok and answer or {err = (type(answer) == 'table' and answer.err or 'ERR ' .. tostring(answer)) .. ' in a script'}
end
return out
`

const luaReleaseMany = `
local call, sub = redis.call, string.sub
local out = {}
local id, member, refuse = ARGV[1], ARGV[2], ARGV[3]
local t = call('TIME')
local fresh = string.format('%010.0f', t[1] - $FRESH)
local function try(key, counter, token, fence)
  local v = call('GET', key)
  local ours = $OURS_OF
  if ours and id == '' and fence > fresh and sub(v, 50, 50) == '-' then
    call('DEL', key)
    return 1
  end
  return one({key, counter, key .. ':q', key .. ':x'}, {token, fence, id, member, refuse})
end
for i = 1, #KEYS, 2 do
  local ok, answer = pcall(try, KEYS[i], KEYS[i + 1], ARGV[i + 3], ARGV[i + 4])
  out[#out + 1] = ok and answer or {err = (type(answer) == 'table' and answer.err or 'ERR ' .. tostring(answer)) .. ' in a script'}
end
return out
`

const luaForce = `
counter()
local was = string.match(redis.call('GET', KEYS[1]) or '', '^%x+ (%d+)') or ''
if #was == #last and last < was then last = was end
count(after(), string.sub(flags, 1, 1))
local freed = redis.call('DEL', KEYS[1])
serve()
return freed
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
try('SETRANGE', KEYS[1], 0, 'q')
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
try('ZREMRANGEBYSCORE', KEYS[2], 0, 0)
try('ZPOPMIN', KEYS[2])
return denied
`

-- The sliding window log: several keys, decided together. Twin of sliding_log.rs, names alike.
-- KEYS[i]  a sorted set for each ask: score = when (µs), member = hits before and after the entry
--          since the log began, as two big-endian u64: hits in the window = newest - oldest.
-- ARGV     six for each ask: limit, window (µs), hits (0 peeks, negative gives back),
--          times (equal asks in one, only when alone), mode (0 enforce, 1 shadow, 2 quota),
--          count_denied (0, 1)
-- reply    four for each ask: granted (of times), remaining, retry (µs; 0 none refused, -1 never),
--          reset (µs until the oldest counted hit leaves)
local MAX_ENTRIES, COMPACT_AT, MAX_HITS = 1024, 1056, 9007199254740991
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function unpack_entry(member) return struct.unpack('>I4I4I4I4', member) end
local function distance(hi, lo, hi2, lo2) return (hi2 - hi) * 4294967296 + (lo2 - lo) end

local function expire(log) redis.call('PEXPIRE', log.key, math.ceil((log.window + log.grain) / 1000)) end

-- Everything dated in the future (the clock stepped back) becomes one entry dated now.
local function redate(log, newest)
  local first = redis.call('ZRANGEBYSCORE', log.key, now + 1, '+inf', 'LIMIT', 0, 1)[1]
  local member = string.sub(first, 1, 8) .. string.sub(newest, 9, 16)
  redis.call('ZADD', log.key, now, member)
  redis.call('ZREMRANGEBYSCORE', log.key, now + 1, '+inf')
  expire(log)
  return member
end

local function open(key, window)
  local log = { key = key, window = window, grain = math.max(1000, math.floor(window / 16)),
    cutoff = now - window, used = 0, pending = 0, hi = 0, lo = 0, newest_at = -1, oldest_at = -1 }
  local newest = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  local member, at = newest[1], tonumber(newest[2])
  if not member or at <= log.cutoff then return log end
  if at > now then member, at = redate(log, member), now end
  local oldest = redis.call('ZRANGEBYSCORE', key, log.cutoff + 1, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local hi, lo, hi2, lo2 = unpack_entry(oldest[1])
  log.first_hi, log.first_lo, log.first_hits = hi, lo, distance(hi, lo, hi2, lo2)
  log.oldest_at, log.newest_at, log.newest = tonumber(oldest[2]), at, member
  hi, lo, log.hi, log.lo = unpack_entry(member)
  log.used = distance(log.first_hi, log.first_lo, log.hi, log.lo)
  return log
end

-- Whether two times, the earlier first, fall into one of the 1,024 slices of the window. Exact:
-- a division of these numbers would round across the border.
local function same_slice(log, earlier, later)
  local slice = log.window / 1024
  return later - earlier + math.fmod(earlier, slice) < slice
end

-- Entries of one slice become one, dated at its newest hit.
local function compact(log)
  local entries = redis.call('ZRANGE', log.key, 0, -1, 'WITHSCORES')
  for i = 1, #entries - 2, 2 do
    if same_slice(log, entries[i + 1], entries[i + 3]) then
      local member = string.sub(entries[i], 1, 8) .. string.sub(entries[i + 2], 9, 16)
      redis.call('ZREM', log.key, entries[i], entries[i + 2])
      redis.call('ZADD', log.key, entries[i + 3], member)
      entries[i + 2] = member
    end
  end
end

local function take(log, hits)
  local lo = log.lo + hits
  local hi = (log.hi + math.floor(lo / 4294967296)) % 4294967296
  lo = lo % 4294967296
  local member = struct.pack('>I4I4I4I4', log.hi, log.lo, hi, lo)
  -- Each entry holds a hit, so few hits are few entries. What has left the window is not counted.
  local live = log.used >= MAX_ENTRIES and redis.call('ZCOUNT', log.key, log.cutoff + 1, '+inf') or 0
  if live >= MAX_ENTRIES and same_slice(log, log.newest_at, now) then
    member = string.sub(log.newest, 1, 8) .. string.sub(member, 9, 16)
    redis.call('ZADD', log.key, now, member)
    redis.call('ZREM', log.key, log.newest)
    redis.call('ZREMRANGEBYSCORE', log.key, '-inf', log.cutoff)
  else
    redis.call('ZADD', log.key, now, member)
    redis.call('ZREMRANGEBYSCORE', log.key, '-inf', log.cutoff)
    if live >= COMPACT_AT then compact(log) end
  end
  -- One expiry serves all entries of a grain: it is set that much later than needed.
  if log.used == 0 or math.floor(log.newest_at / log.grain) ~= math.floor(now / log.grain) then
    expire(log)
  end
  if live >= COMPACT_AT then return open(log.key, log.window) end
  if log.used == 0 then log.oldest_at, log.first_hi, log.first_lo, log.first_hits = now, log.hi, log.lo, hits end
  log.used, log.hi, log.lo, log.newest_at, log.newest = log.used + hits, hi, lo, now, member
  return log
end

-- Live entries by rank; the first that satisfies `reached` (monotone), by halving.
local function find(log, reached)
  local low = redis.call('ZCOUNT', log.key, '-inf', log.cutoff)
  local high = redis.call('ZCARD', log.key) - 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if reached(redis.call('ZRANGE', log.key, middle, middle)[1]) then high = middle else low = middle + 1 end
  end
  return low
end

local function give_back(log, hits)
  if log.used == 0 then return log end
  local kept = math.max(0, log.used - hits)
  local rank = find(log, function(member)
    local _, _, hi, lo = unpack_entry(member)
    return distance(log.first_hi, log.first_lo, hi, lo) > kept
  end)
  local entry = redis.call('ZRANGE', log.key, rank, rank, 'WITHSCORES')
  local lo = log.first_lo + kept
  local hi = (log.first_hi + math.floor(lo / 4294967296)) % 4294967296
  lo = lo % 4294967296
  local member = string.sub(entry[1], 1, 8) .. struct.pack('>I4I4', hi, lo)
  -- Added before the rest is removed: a key that was empty in between would lose its expiry.
  if string.sub(member, 1, 8) ~= string.sub(member, 9, 16) then
    redis.call('ZADD', log.key, entry[2], member)
    rank = rank + 1
  end
  redis.call('ZREMRANGEBYRANK', log.key, rank, -1)
  return open(log.key, log.window)
end

-- Time until `need` of the hits in the window have left it.
local function leave(log, need)
  if need <= 0 then return 0 end
  local at = log.oldest_at
  if need > log.first_hits then
    local rank = find(log, function(member)
      local _, _, hi, lo = unpack_entry(member)
      return distance(log.first_hi, log.first_lo, hi, lo) >= need
    end)
    at = tonumber(redis.call('ZRANGE', log.key, rank, rank, 'WITHSCORES')[2])
  end
  return at + log.window - now
end

-- Decide: nothing is written before every ask is answered.
local logs, asks, refused, quotas, quotas_over = {}, {}, false, 0, 0
for i, key in ipairs(KEYS) do
  local at = (i - 1) * 6
  local limit, window, hits = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local times, mode, count_denied = tonumber(ARGV[at + 4]), ARGV[at + 5], ARGV[at + 6] == '1'
  local log = logs[key] or open(key, window)
  logs[key] = log
  local ask = { key = key, limit = limit, hits = hits, times = times, count_denied = count_denied,
    before = log.pending, granted = times }
  local used = log.used + log.pending
  if hits > 0 then
    ask.granted = math.max(0, math.min(times, math.floor((limit - used) / hits)))
    log.pending = log.pending + ask.granted * hits
  elseif hits == 0 and used > limit then
    ask.granted = 0
  end
  if mode == '2' then quotas = quotas + 1 end
  if ask.granted == 0 then
    if mode == '0' then refused = true elseif mode == '2' then quotas_over = quotas_over + 1 end
  end
  asks[i] = ask
end
refused = refused or (quotas > 0 and quotas_over == quotas)

-- Commit.
for _, ask in ipairs(asks) do
  local log = logs[ask.key]
  local hits = refused and 0 or ask.granted * ask.hits
  if ask.count_denied and ask.hits > 0 then hits = math.min(ask.times * ask.hits, MAX_HITS - log.used) end
  if hits > 0 then logs[ask.key] = take(log, hits) end
  if hits < 0 then logs[ask.key] = give_back(log, -hits) end
end

-- Answer.
local reply = {}
for i, ask in ipairs(asks) do
  local log, retry = logs[ask.key], 0
  if ask.granted < ask.times then
    -- What was refused waits for room beside what the same request asked for before it.
    local asked = ask.hits + (refused and ask.before or 0)
    retry = asked > ask.limit and -1 or math.max(1, leave(log, log.used + asked - ask.limit))
  end
  local reset = log.used > 0 and log.oldest_at + log.window - now or 0
  local at = (i - 1) * 4
  reply[at + 1], reply[at + 2] = ask.granted, math.max(0, ask.limit - log.used)
  reply[at + 3], reply[at + 4] = retry, reset
end
return reply

-- The sliding window log: several keys, decided together. Twin of sliding_log.rs, names alike.
-- KEYS[i]  a string for each ask: entries of 32 bytes, oldest first. An entry says when it was made
--          (µs), and all hits up to it since the log began; then, as known when it was made, when
--          the oldest live entry was, the hits before that one, its rank, and how many entries live
--          from there on. So the newest entry alone tells the hits in the window, for as long as
--          nothing has left it. Before the oldest live entry lie a few that left.
-- ARGV[i]  packed as ASK: limit, window (µs), hits (0 peeks, negative gives back), times (equal asks
--          in one, only when alone), mode (0 enforce, 1 shadow, 2 quota), count_denied (0, 1)
-- reply    for each ask, packed as REPLY: granted (of times), remaining, retry (µs; 0 none refused,
--          -1 never), reset (µs until the oldest counted hit leaves)
-- Nothing is taken before everything is decided, and whatever happens to a log is one write: Redis
-- refuses the first write of a script when it is out of memory, but not a later one.
local call, pack, unpack, math = redis.call, struct.pack, struct.unpack, math
local MAX_ENTRIES, COMPACT_AT, MAX_LEFT, MAX_HITS = 1024, 1056, 128, 9007199254740991
local ENTRY, SIZE, PAIR = '>I7I7I7I7I2I2', 32, '>I7I7'
local ASK, REPLY = '>i8i8i8I4BB', '>i8i8i8i8'
local time = call('TIME')
local now = time[1] * 1000000 + time[2]

-- The usual case, at a fraction of the general one's cost: one key, hits to take, an append. Not
-- even a function is made before it.
if #KEYS == 1 then
  local key, limit, window, hits, times, _, count_denied = KEYS[1], unpack(ASK, ARGV[1])
  local newest, cutoff = call('GETRANGE', key, '-32', '-1'), now - window
  local at, after, oldest_at, before, head, live = 0, 0, now, 0, 0, 0
  if #newest == SIZE then at, after, oldest_at, before, head, live = unpack(ENTRY, newest) end
  local is_usual = hits > 0 and count_denied == 0 and at <= now and (at > 0 or newest == '')
  if at <= cutoff then
    after, oldest_at, before, head, live = 0, now, 0, 0, 0
  elseif oldest_at <= cutoff then
    -- The oldest live entry is now one of the next few, nearly always.
    local few, last = call('GETRANGE', key, head * SIZE, (head + 8) * SIZE - 1), head + live
    for position = 1, #few, SIZE do
      local at, up_to = unpack(PAIR, few, position)
      oldest_at = at
      if at > cutoff then break end
      head, before = head + 1, up_to
    end
    live, is_usual = last - head, is_usual and oldest_at > cutoff
  end
  local used = after - before
  local granted = (limit - used) / hits
  granted = granted >= times and times or granted < 1 and 0 or math.floor(granted)
  local total = used + granted * hits
  local waits_for_oldest = granted == times or hits > limit or hits - (limit - total) == 1
  local slice = window / MAX_ENTRIES
  local merge = live >= MAX_ENTRIES and now - at + math.fmod(at, slice) < slice
  local appends = merge or (live < COMPACT_AT and head < MAX_LEFT)
  if is_usual and waits_for_oldest and appends and before + total <= MAX_HITS then
    if granted > 0 then
      local grain = window > 16000 and math.floor(window / 16) or 1000
      if live == 0 then
        local entry = pack(ENTRY, now, total, now, 0, 0, 1)
        call('SET', key, entry, 'PX', math.ceil((window + grain) / 1000))
      else
        if merge then
          local entry = pack(ENTRY, now, before + total, oldest_at, before, head, live)
          call('SETRANGE', key, (head + live - 1) * SIZE, entry)
        else
          call('APPEND', key, pack(ENTRY, now, before + total, oldest_at, before, head, live + 1))
        end
        -- One expiry serves all entries of a grain: it is set that much later than needed.
        if math.floor(at / grain) ~= math.floor(now / grain) then
          call('PEXPIRE', key, math.ceil((window + grain) / 1000))
        end
      end
    end
    local wait = oldest_at + window - now
    local retry = granted < times and (hits > limit and -1 or wait) or 0
    return pack(REPLY, granted, limit > total and limit - total or 0, retry, total > 0 and wait or 0)
  end
end

local floor, ceil = math.floor, math.ceil

local function read(key, rank)
  return unpack(PAIR, call('GETRANGE', key, rank * SIZE, rank * SIZE + 13))
end

-- The first of these ranks whose entry is younger than `cutoff` and has more than `hits` up to it.
local function find(key, low, high, cutoff, hits)
  while low < high do
    local middle = floor((low + high) / 2)
    local at, after = read(key, middle)
    if at > cutoff and after > hits then high = middle else low = middle + 1 end
  end
  return low
end

-- The oldest live entry, when that at `head` has left: its rank, when it was made, the hits before.
local function advance(key, head, last, cutoff)
  local rank = find(key, head + 1, last, cutoff, -1)
  local _, before = read(key, rank - 1)
  return rank, read(key, rank), before
end

-- Whether two times, the earlier first, fall into one of the 1,024 slices of the window. Exact:
-- a division of these numbers would round across the border.
local function same_slice(window, earlier, later)
  local slice = window / 1024
  return later - earlier + math.fmod(earlier, slice) < slice
end

-- The newest entry of a log, as it is now.
local function newest(log)
  return pack(ENTRY, log.at, log.after, log.oldest_at, log.before, log.head, log.live)
end

-- Makes the first `ranks` entries and the newest one the whole log.
local function cut(log, ranks)
  local text = ranks > 0 and call('GETRANGE', log.key, 0, ranks * SIZE - 1) or ''
  call('SET', log.key, text .. newest(log), 'PX', log.ttl_ms)
end

local function open(key, window)
  local grain = math.max(1000, floor(window / 16))
  local log = { key = key, window = window, cutoff = now - window, grain = grain, pending = 0,
    ttl_ms = ceil((window + grain) / 1000), at = 0, after = 0, oldest_at = now, before = 0, head = 0,
    live = 0 }
  local text = call('GETRANGE', key, '-32', '-1')
  local at, after, oldest_at, before, head, live = 0, 0, now, 0, 0, 0
  if #text == SIZE then at, after, oldest_at, before, head, live = unpack(ENTRY, text) end
  -- Somebody else's text has another length, or is a time after the year 2255. Redis says so best.
  if at > MAX_HITS or (at == 0 and text ~= '') then call('LLEN', key) end
  if at <= log.cutoff then return log end
  if at > now then
    -- Everything dated in the future (the clock stepped back) becomes one entry dated now.
    local first = find(key, head, head + live - 1, now, -1)
    log.at, log.after, log.oldest_at, log.before = now, after, math.min(oldest_at, now), before
    log.head, log.live = head, first - head + 1
    cut(log, first)
    at, oldest_at, live = log.at, log.oldest_at, log.live
  end
  if oldest_at <= log.cutoff then
    local left = head
    head, oldest_at, before = advance(key, head, head + live - 1, log.cutoff)
    live = live - (head - left)
  end
  log.at, log.after, log.oldest_at, log.before = at, after, oldest_at, before
  log.head, log.live = head, live
  return log
end

local function used(log)
  return log.after - log.before
end

-- Writes the live entries anew, with sums that count from the oldest one; entries of one slice
-- become one, dated at its newest hit, if that is wished.
local function rewrite(log, merge)
  local text = call('GETRANGE', log.key, log.head * SIZE, -1)
  local kept, count, last_at = {}, 0, nil
  for position = 1, #text, SIZE do
    local at, after = unpack(PAIR, text, position)
    if not (merge and last_at and same_slice(log.window, last_at, at)) then count = count + 1 end
    kept[count] = pack(ENTRY, at, after - log.before, 0, 0, 0, 0)
    last_at = at
  end
  log.oldest_at = unpack(PAIR, kept[1])
  log.after, log.before, log.head, log.live = used(log), 0, 0, count
  kept[count] = newest(log)
  call('SET', log.key, table.concat(kept), 'PX', log.ttl_ms)
end

local function take(log, hits)
  if log.after + hits > MAX_HITS then rewrite(log, false) end
  local merge = log.live >= MAX_ENTRIES and same_slice(log.window, log.at, now)
  local last, is_stale = log.head + log.live - 1, floor(log.at / log.grain) ~= floor(now / log.grain)
  log.at, log.after = now, log.after + hits
  if not merge then log.live = log.live + 1 end
  if log.live == 1 then
    cut(log, 0)
  elseif merge then
    call('SETRANGE', log.key, last * SIZE, newest(log))
  elseif log.head >= MAX_LEFT then
    local text = call('GETRANGE', log.key, log.head * SIZE, -1)
    log.head = 0
    call('SET', log.key, text .. newest(log), 'PX', log.ttl_ms)
  else
    call('APPEND', log.key, newest(log))
  end
  if log.live > COMPACT_AT and not merge then rewrite(log, true) end
  if is_stale and log.live > 1 then call('PEXPIRE', log.key, log.ttl_ms) end
end

local function give_back(log, hits)
  if log.live == 0 then return end
  local kept = math.max(0, used(log) - hits)
  if kept == 0 then
    call('DEL', log.key)
    log.after, log.oldest_at, log.before, log.head, log.live = 0, now, 0, 0, 0
    return
  end
  local rank = find(log.key, log.head, log.head + log.live - 1, -1, log.before + kept - 1)
  log.at = read(log.key, rank)
  log.after, log.live = log.before + kept, rank - log.head + 1
  cut(log, rank)
end

-- Time until `need` of the hits in the window have left it.
local function leave(log, need)
  if need <= 0 then return 1 end
  local at = log.oldest_at
  if need > 1 then
    local last = log.head + log.live - 1
    at = read(log.key, find(log.key, log.head, last, -1, log.before + need - 1))
  end
  return math.max(1, at + log.window - now)
end

-- Decide.
local logs, asks, refused, quotas, quotas_over = {}, {}, false, 0, 0
for i, key in ipairs(KEYS) do
  local limit, window, hits, times, mode, count_denied = unpack(ASK, ARGV[i])
  local log = logs[key] or open(key, window)
  logs[key] = log
  local ask = { log = log, limit = limit, hits = hits, times = times, count_denied = count_denied == 1,
    before = log.pending, granted = times }
  local total = used(log) + log.pending
  if hits > 0 then
    ask.granted = math.max(0, math.min(times, floor((limit - total) / hits)))
    log.pending = log.pending + ask.granted * hits
  elseif hits == 0 and total > limit then
    ask.granted = 0
  end
  if mode == 2 then quotas = quotas + 1 end
  if ask.granted == 0 then
    if mode == 0 then refused = true elseif mode == 2 then quotas_over = quotas_over + 1 end
  end
  asks[i] = ask
end
refused = refused or (quotas > 0 and quotas_over == quotas)

-- Commit.
for _, ask in ipairs(asks) do
  local log = ask.log
  local hits = refused and 0 or ask.granted * ask.hits
  if ask.count_denied and ask.hits > 0 then
    hits = math.min(ask.times * ask.hits, MAX_HITS - used(log))
  end
  if hits > 0 then take(log, hits) elseif hits < 0 then give_back(log, -hits) end
end

-- Answer.
local reply = {}
for i, ask in ipairs(asks) do
  local log, retry = ask.log, 0
  if ask.granted < ask.times then
    -- What was refused waits for room beside what the same request asked for before it.
    local asked = ask.hits + (refused and ask.before or 0)
    retry = asked > ask.limit and -1 or leave(log, asked - (ask.limit - used(log)))
  end
  local remaining = math.max(0, ask.limit - used(log))
  local reset = log.live > 0 and log.oldest_at + log.window - now or 0
  reply[i] = pack(REPLY, ask.granted, remaining, retry, reset)
end
return table.concat(reply)

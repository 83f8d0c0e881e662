-- The sliding window log: several keys, decided together. Twin of sliding_log.rs, names alike.
-- KEYS[i]  a sorted set for each ask: score = when (µs), member = five 7-byte integers: when; hits
--          before and after the entry since the log began; when the oldest live entry was made,
--          and the hits before it, as known when this one was written. So the newest member alone
--          tells the hits in the window, for as long as nothing has left it.
-- ARGV[i]  packed as ASK: limit, window (µs), hits (0 peeks, negative gives back), times (equal asks
--          in one, only when alone), mode (0 enforce, 1 shadow, 2 quota), count_denied (0, 1)
-- reply    for each ask, packed as REPLY: granted (of times), remaining, retry (µs; 0 none refused,
--          -1 never), reset (µs until the oldest counted hit leaves). A flood of refusals costs a
--          tenth less when a lone ask that finds nothing left gets the wait alone, an integer.
-- Nothing is written before everything is decided, and nothing is removed before something is
-- added: Redis refuses the first write of a script when it is out of memory, but not a later one.
-- Where it matters numbers go to commands as text: Redis itself would print each with %.17g, which
-- costs as much as a third of a command.
local call, pack, unpack, spread = redis.call, struct.pack, struct.unpack, unpack
local floor, text = math.floor, string.format
local MAX_ENTRIES, COMPACT_AT, MAX_HITS = 1024, 1056, 9007199254740991
local ENTRY, ASK, REPLY = '>I7I7I7I7I7', '>i8i8i8I4BB', '>i8i8i8i8'
local time = call('TIME')
local now = time[1] * 1000000 + time[2]

-- The usual case, at a fraction of the general one's cost: hits to take, keys that differ, no step
-- back of the clock. Not even a function is made before it, nor a table for a lone key.
local count, refused, quotas, quotas_over = #KEYS, false, 0, 0
local plans, is_usual = count > 1 and {}, true
local key, newest, entry, merged, trim, expiry, granted, limit, used, total, retry, wait
for i = 1, count do
  key = KEYS[i]
  local window, hits, times, mode, count_denied
  limit, window, hits, times, mode, count_denied = unpack(ASK, ARGV[i])
  local cutoff, at, merged_before, after, oldest_at, before = now - window, 0, 0, 0, now, 0
  newest = call('ZREVRANGE', key, '0', '0')[1]
  if newest then at, merged_before, after, oldest_at, before = unpack(ENTRY, newest) end
  local is_empty, has_left = at <= cutoff, false
  if is_empty then
    after, oldest_at, before = 0, now, 0
  elseif oldest_at <= cutoff then
    has_left = true
    local since = text('%d', cutoff + 1)
    oldest_at, before = unpack(ENTRY, call('ZRANGEBYSCORE', key, since, '+inf', 'LIMIT', '0', '1')[1])
  end
  used = after - before
  granted = (limit - used) / hits
  granted = granted >= times and times or granted < 1 and 0 or floor(granted)
  total, wait, retry = used + granted * hits, oldest_at + window - now, 0
  entry, merged, trim, expiry = false, false, false, false
  is_usual = hits > 0 and count_denied == 0 and at <= now and before + total <= MAX_HITS
    and (granted == times or hits > limit or hits - (limit - total) == 1)
  if granted < times then retry = hits > limit and -1 or wait end
  if is_usual and granted > 0 then
    local live, merge = 0, false
    if total > MAX_ENTRIES then
      -- What has left the window does not count, or it would make live entries merge early.
      live = has_left and call('ZCOUNT', key, text('%d', cutoff + 1), '+inf') or call('ZCARD', key)
      local slice = window / MAX_ENTRIES
      merge = live >= MAX_ENTRIES and now - at + math.fmod(at, slice) < slice
      is_usual = merge or live < COMPACT_AT
    end
    entry = pack(ENTRY, now, merge and merged_before or after, before + total, oldest_at, before)
    merged, trim = merge and newest, (has_left or (is_empty and newest)) and cutoff
    -- One expiry serves all entries of a grain: it is set that much later than needed.
    local grain = window > 16000 and floor(window / 16) or 1000
    local is_due = is_empty or floor(at / grain) ~= floor(now / grain)
    expiry = is_due and math.ceil((window + grain) / 1000)
  elseif mode == 0 then
    refused = true
  end
  if plans then
    is_usual = is_usual and not plans[key]
    if mode == 2 then quotas, quotas_over = quotas + 1, quotas_over + (granted > 0 and 0 or 1) end
    plans[i] = { key, entry, merged, trim or false, expiry, granted, limit, used, total, retry, wait }
    plans[key] = true
  end
  if not is_usual then break end
end
if is_usual then
  refused = refused or (quotas > 0 and quotas_over == quotas)
  for i = 1, count do
    if plans then
      key, entry, merged, trim, expiry, granted, limit, used, total, retry, wait = spread(plans[i])
    end
    if entry and not refused then
      call('ZADD', key, text('%d', now), entry)
      if merged then call('ZREM', key, merged) end
      if trim then call('ZREMRANGEBYSCORE', key, '-inf', text('%d', trim)) end
      if expiry then call('PEXPIRE', key, text('%d', expiry)) end
      used = total
    end
    local left, reset = limit > used and limit - used or 0, used > 0 and wait or 0
    if not plans and granted == 0 and left == 0 and retry == reset then return retry end
    local reply = pack(REPLY, granted, left, retry, reset)
    if not plans then return reply end
    plans[i] = reply
  end
  return table.concat(plans)
end

-- Everything else: a function of its own, or the usual case would pay for the room of its locals.
local function decide()
  local function expire(log)
    call('PEXPIRE', log.key, math.ceil((log.window + log.grain) / 1000))
  end

  -- Everything dated in the future (the clock stepped back) becomes one entry dated now.
  local function redate(log, newest)
    local first = call('ZRANGEBYSCORE', log.key, now + 1, '+inf', 'LIMIT', '0', '1')[1]
    local _, before = unpack(ENTRY, first)
    local _, _, after, oldest_at, oldest_before = unpack(ENTRY, newest)
    local member = pack(ENTRY, now, before, after, math.min(oldest_at, now), oldest_before)
    call('ZADD', log.key, now, member)
    call('ZREMRANGEBYSCORE', log.key, now + 1, '+inf')
    expire(log)
    return member
  end

  local function open(key, window)
    local log = { key = key, window = window, cutoff = now - window, grain = math.max(1000, floor(window / 16)),
      used = 0, pending = 0, after = 0, before = 0, newest_at = -1, oldest_at = now }
    local member = call('ZRANGE', key, '-1', '-1')[1]
    if not member then return log end
    local at = unpack(ENTRY, member)
    if at <= log.cutoff then return log end
    if at > now then member = redate(log, member) end
    local oldest = call('ZRANGEBYSCORE', key, log.cutoff + 1, '+inf', 'LIMIT', '0', '1')[1]
    log.oldest_at, log.before, log.oldest_after = unpack(ENTRY, oldest)
    log.newest_at, log.newest_before, log.after = unpack(ENTRY, member)
    log.newest, log.used = member, log.after - log.before
    return log
  end

  -- Writes an entry, with what is known of the oldest now, and returns its member.
  local function write(log, at, before, after)
    local member = pack(ENTRY, at, before, after, log.oldest_at, log.before)
    call('ZADD', log.key, at, member)
    return member
  end

  -- Counts from the log's oldest entry again, before sums grow too large to be exact. Once in
  -- 2^53 hits.
  local function rebase(log)
    local entries, base = call('ZRANGE', log.key, '0', '-1'), log.before
    log.after, log.before = log.used, 0
    call('DEL', log.key)
    for _, entry in ipairs(entries) do
      local at, before, after = unpack(ENTRY, entry)
      if at > log.cutoff then write(log, at, before - base, after - base) end
    end
    return open(log.key, log.window)
  end

  -- Whether two times, the earlier first, fall into one of the 1,024 slices of the window. Exact:
  -- a division of these numbers would round across the border.
  local function same_slice(log, earlier, later)
    local slice = log.window / 1024
    return later - earlier + math.fmod(earlier, slice) < slice
  end

  -- Entries of one slice become one, dated at its newest hit.
  local function compact(log)
    local entries = call('ZRANGE', log.key, '0', '-1')
    local last, last_at, last_before = nil, -1, 0
    for _, entry in ipairs(entries) do
      local at, before, after = unpack(ENTRY, entry)
      if last and same_slice(log, last_at, at) then
        call('ZREM', log.key, last, entry)
        before, entry = last_before, write(log, at, last_before, after)
      end
      last, last_at, last_before = entry, at, before
    end
    -- The newest entry must know the oldest, which may have become younger.
    local fresh = open(log.key, log.window)
    call('ZREM', log.key, fresh.newest)
    write(fresh, fresh.newest_at, fresh.newest_before, fresh.after)
  end

  local function take(log, hits)
    if log.after + hits > MAX_HITS then log = rebase(log) end
    -- What has left the window does not count, or it would make live entries merge early.
    local live = log.used >= MAX_ENTRIES and call('ZCOUNT', log.key, log.cutoff + 1, '+inf') or 0
    local merge = live >= MAX_ENTRIES and same_slice(log, log.newest_at, now)
    write(log, now, merge and log.newest_before or log.after, log.after + hits)
    if merge then call('ZREM', log.key, log.newest) end
    call('ZREMRANGEBYSCORE', log.key, '-inf', log.cutoff)
    if live >= COMPACT_AT and not merge then compact(log) end
    -- One expiry serves all entries of a grain: it is set that much later than needed.
    if log.used == 0 or floor(log.newest_at / log.grain) ~= floor(now / log.grain) then expire(log) end
    return open(log.key, log.window)
  end

  -- The rank of the first live entry after which more than `hits` of the window's were counted.
  local function find(log, hits)
    local low, high = call('ZCOUNT', log.key, '-inf', log.cutoff), call('ZCARD', log.key) - 1
    while low < high do
      local middle = floor((low + high) / 2)
      local _, _, after = unpack(ENTRY, call('ZRANGE', log.key, middle, middle)[1])
      if after - log.before > hits then high = middle else low = middle + 1 end
    end
    return low
  end

  local function give_back(log, hits)
    if log.used == 0 then return log end
    local kept = math.max(0, log.used - hits)
    local rank = find(log, kept)
    local at, before = unpack(ENTRY, call('ZRANGE', log.key, rank, rank)[1])
    local newest = rank > 0 and call('ZRANGE', log.key, rank - 1, rank - 1)[1]
    call('ZREMRANGEBYRANK', log.key, rank, -1)
    if before < log.before + kept then
      write(log, at, before, log.before + kept)
    elseif kept > 0 then
      -- The entry that is now the newest must know the oldest.
      local newest_at, newest_before, after = unpack(ENTRY, newest)
      call('ZREM', log.key, newest)
      write(log, newest_at, newest_before, after)
    end
    if kept > 0 then expire(log) end
    return open(log.key, log.window)
  end

  -- Time until `need` of the hits in the window have left it.
  local function leave(log, need)
    if need <= 0 then return 1 end
    local at = log.oldest_at
    if log.used > 0 and need > log.oldest_after - log.before then
      local rank = find(log, need - 1)
      at = unpack(ENTRY, call('ZRANGE', log.key, rank, rank)[1])
    end
    return math.max(1, at + log.window - now)
  end

  -- Decide.
  local logs, asks = {}, {}
  refused, quotas, quotas_over = false, 0, 0
  for i, key in ipairs(KEYS) do
    local limit, window, hits, times, mode, count_denied = unpack(ASK, ARGV[i])
    local log = logs[key] or open(key, window)
    logs[key] = log
    local ask = { key = key, limit = limit, hits = hits, times = times, count_denied = count_denied == 1,
      before = log.pending, granted = times }
    local used = log.used + log.pending
    if hits > 0 then
      ask.granted = math.max(0, math.min(times, floor((limit - used) / hits)))
      log.pending = log.pending + ask.granted * hits
    elseif hits == 0 and used > limit then
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
      retry = asked > ask.limit and -1 or leave(log, asked - (ask.limit - log.used))
    end
    local reset = log.used > 0 and log.oldest_at + log.window - now or 0
    reply[i] = pack(REPLY, ask.granted, math.max(0, ask.limit - log.used), retry, reset)
  end
  return table.concat(reply)
end
return decide()

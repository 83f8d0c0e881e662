-- Takes back what a request over several cluster slots had reserved, when another slot refused.
-- Reads the entries of sliding_log.lua; never takes a hit that was counted before the request.
-- KEYS[i]  the log of each reservation
-- ARGV     three for each: since (µs; the server's time just before the reservation), hits,
--          window (µs)
-- reply    empty
-- Hits are taken from the oldest entry since then. That is the reservation's own, or one that is
-- dated before it: what stays counted is dated no earlier than it happened, so nothing that was
-- admitted leaves its window early. A reservation that has left its window is not there any more.
local ENTRY = '>I7I7I7I7I7'
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function give_back(key, since, hits)
  local taken, first_at, first_before = 0, nil, nil
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, since, '+inf')) do
    local at, before, after, oldest_at, oldest_before = struct.unpack(ENTRY, member)
    before = before - taken
    taken = taken + math.min(hits - taken, after - taken - before)
    after = after - taken
    redis.call('ZREM', key, member)
    if after > before then
      if not first_at then first_at, first_before = at, before end
      -- The oldest live entry may be the one that was taken.
      if oldest_at >= since then oldest_at, oldest_before = first_at, first_before end
      redis.call('ZADD', key, at, struct.pack(ENTRY, at, before, after, oldest_at, oldest_before))
    end
  end
end

for i, key in ipairs(KEYS) do
  local since, hits, window = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  if since > now - window then give_back(key, since, hits) end
end
return ''

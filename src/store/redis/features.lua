-- Tries everything that sliding_log.lua and give_back.lua need, on a key that is not there.
-- KEYS[1]  a key of its own; nothing is left of it
-- reply    what is missing, each with the reason, joined by "; "; empty when nothing is
local missing = {}

local function needs(what, works, why)
  if not works then missing[#missing + 1] = what .. (why and ' (' .. why .. ')' or '') end
end

local function may(command, ...)
  local reply = redis.pcall(command, ...)
  local failed = type(reply) == 'table' and reply.err
  needs('the command ' .. command, not failed, failed)
end

needs('the Lua library struct', pcall(function()
  assert(struct.unpack('>I7', struct.pack('>I7', 2 ^ 53 - 1)) == 2 ^ 53 - 1)
end))
needs('the Lua function math.fmod', pcall(function() return math.fmod(1, 2) end))
may('TIME')
local key = KEYS[1]
may('ZADD', key, 1, 'a')
may('ZRANGE', key, -1, -1)
may('ZREVRANGE', key, 0, 0)
may('ZRANGEBYSCORE', key, 1, '+inf', 'LIMIT', 0, 1)
may('ZCOUNT', key, 1, '+inf')
may('ZCARD', key)
may('PEXPIRE', key, 1000)
may('ZREM', key, 'a')
may('ZREMRANGEBYSCORE', key, '-inf', 0)
may('ZREMRANGEBYRANK', key, 0, -1)
may('DEL', key)
return table.concat(missing, '; ')

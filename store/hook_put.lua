-- Writes what the hook was told of a room, for who has taken it.
--
-- KEYS[1] hook hash
-- ARGV[1] room
-- ARGV[2] who has taken it
-- ARGV[3] ms for which he has it from now on; 0 gives it back
-- ARGV[4] record; given back empty, it is removed
--
-- Returns 1, or 0 when another one has taken it meanwhile, or nobody.

local value = redis.call('HGET', KEYS[1], ARGV[1])
if not value or string.match(value, '^%d+ (%S+) ') ~= ARGV[2] then
  return 0
end
local ttl = tonumber(ARGV[3])
if ttl > 0 then
  local time = redis.call('TIME')
  local till = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + ttl
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', till) .. ' ' .. ARGV[2] .. ' ' .. ARGV[4])
elseif ARGV[4] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], '0 - ' .. ARGV[4])
end
return 1

-- Takes what the hook was told of a room, for a while, so that one replica at a time speaks of it.
--
-- KEYS[1] hook hash
-- KEYS[2] versions hash
-- ARGV[1] room
-- ARGV[2] who takes it
-- ARGV[3] time in ms after which another one may take it
-- ARGV[4] aggregate that is the taker's fence
-- ARGV[5] position at which that must be
--
-- Returns {'taken' or 'held', ms until it can be taken, record}, or {'fenced'}.

if redis.call('HGET', KEYS[2], ARGV[4]) ~= ARGV[5] then
  return {'fenced'}
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local value = redis.call('HGET', KEYS[1], ARGV[1]) or '0 - '
local till, by, record = string.match(value, '^(%d+) (%S+) (.*)$')
if not till then
  till, by, record = '0', '-', ''
end
local left = tonumber(till) - now
if by ~= '-' and by ~= ARGV[2] and left > 0 then
  return {'held', left, record}
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now + tonumber(ARGV[3])) .. ' ' .. ARGV[2] .. ' ' .. record)
return {'taken', 0, record}

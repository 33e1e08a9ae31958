-- KEYS[1] call
-- ARGV[1] owner's instance
-- ARGV[2] owner's incarnation
-- ARGV[3] method
-- ARGV[4] joiner
-- ARGV[5] time to live in ms
--
-- Returns nil when the call has been started, else the fields o, i, m, t, d, r of the one that is there.

local call = redis.call('HMGET', KEYS[1], 'o', 'i', 'm', 't', 'd', 'r')
if not call[1] then
  redis.call('HSET', KEYS[1], 'o', ARGV[1], 'i', ARGV[2], 'm', ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
  return false
end
if not call[5] and call[3] == ARGV[3] then
  redis.call('HSET', KEYS[1], 'j' .. ARGV[4], '')
end
return call

-- KEYS[1] call
-- KEYS[2] ack
-- ARGV[1] owner's instance
-- ARGV[2] owner's incarnation
-- ARGV[3] target
-- ARGV[4] pointer to the call
-- ARGV[5] time to live in ms
--
-- Returns 1, or 0 when the owner does not run the call.

local call = redis.call('HMGET', KEYS[1], 'o', 'i', 'd')
if call[1] ~= ARGV[1] or call[2] ~= ARGV[2] or call[3] then
  return 0
end
redis.call('HSET', KEYS[1], 't', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('SET', KEYS[2], ARGV[4], 'PX', ARGV[5])
return 1

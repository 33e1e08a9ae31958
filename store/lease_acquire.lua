-- KEYS[1] lease
-- ARGV[1] incarnation
-- ARGV[2] time to live in ms
--
-- Returns who holds the lease now.

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return holder
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]

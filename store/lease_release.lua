-- KEYS[1] lease
-- ARGV[1] incarnation
--
-- Returns 1 when the lease was its own and is gone, else 0.

if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0

-- KEYS[1] inbox
-- ARGV[1] its epoch
-- ARGV[2] the first number that has not been handled
--
-- Makes a missing inbox again, or removes what has been handled. Returns {1 when it was missing, its length}.

local first = ARGV[1] .. '-' .. ARGV[2]
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('XADD', KEYS[1], first, 'm', '')
  return {1, 1}
end
redis.call('XTRIM', KEYS[1], 'MINID', first)
return {0, redis.call('XLEN', KEYS[1])}

-- KEYS[1] inbox
-- ARGV[1] its epoch
-- ARGV[2] the first number that has not been handled
--
-- Makes a missing inbox again, or removes what has been handled. An inbox that has not come so far yet has lost
-- messages: it goes on after what was handled, or what comes next would not be read. Returns {1 when it was missing or
-- had lost messages, its length}.

local first = ARGV[1] .. '-' .. ARGV[2]
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('XADD', KEYS[1], first, 'm', '')
  return {1, 1}
end
local info = redis.call('XINFO', 'STREAM', KEYS[1])
for i = 1, #info, 2 do
  if info[i] == 'last-generated-id' then
    local last = string.match(info[i + 1], '^%d+-(%d+)$')
    if last and tonumber(last) < tonumber(ARGV[2]) - 1 then
      redis.call('XADD', KEYS[1], first, 'm', '')
      return {1, redis.call('XLEN', KEYS[1])}
    end
  end
end
redis.call('XTRIM', KEYS[1], 'MINID', first)
return {0, redis.call('XLEN', KEYS[1])}

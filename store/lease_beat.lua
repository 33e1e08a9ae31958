-- KEYS[1]  own lease
-- KEYS[2]  versions hash
-- KEYS[3]  secret
-- KEYS[4…] leases of others
-- ARGV[1]  incarnation
-- ARGV[2]  time to live in ms
--
-- Returns {'kept', 'healed' or 'lost', seconds and microseconds of the clock, head of the log or '', holder, secret
-- or '', then for each other lease how long it lasts in ms, -2 if there is none}. A lost lease is not touched.

local holder = redis.call('GET', KEYS[1])
local state = 'kept'
if not holder then
  state = 'healed'
elseif holder ~= ARGV[1] then
  state = 'lost'
end
local now = redis.call('TIME')
local answer = {state, now[1], now[2], redis.call('HGET', KEYS[2], '@head') or '', holder or '',
  redis.call('GET', KEYS[3]) or ''}
for i = 4, #KEYS do
  answer[#answer + 1] = redis.call('PTTL', KEYS[i])
end
if state ~= 'lost' then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return answer

-- KEYS[1] call
-- ARGV[1] owner's instance, '' for whoever it is
-- ARGV[2] owner's incarnation
-- ARGV[3] result
-- ARGV[4] how long to keep it in ms, 0 for not at all
--
-- Returns the joiners, or nil when no such call is running.

local call = redis.call('HMGET', KEYS[1], 'o', 'i', 'd')
if not call[1] or call[3] then
  return false
end
if ARGV[1] ~= '' and (call[1] ~= ARGV[1] or call[2] ~= ARGV[2]) then
  return false
end
local joiners = {}
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.sub(field, 1, 1) == 'j' then
    joiners[#joiners + 1] = string.sub(field, 2)
  end
end
if ARGV[4] == '0' then
  redis.call('DEL', KEYS[1])
  return joiners
end
for _, joiner in ipairs(joiners) do
  redis.call('HDEL', KEYS[1], 'j' .. joiner)
end
redis.call('HSET', KEYS[1], 'd', '1', 'r', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return joiners

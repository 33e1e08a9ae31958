-- KEYS[1] call
-- ARGV[1] owner's instance
-- ARGV[2] owner's incarnation
--
-- Removes a running call. Returns the joiners, or nil when the owner does not run it.

local call = redis.call('HMGET', KEYS[1], 'o', 'i', 'd')
if call[1] ~= ARGV[1] or call[2] ~= ARGV[2] or call[3] then
  return false
end
local joiners = {}
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.sub(field, 1, 1) == 'j' then
    joiners[#joiners + 1] = string.sub(field, 2)
  end
end
redis.call('DEL', KEYS[1])
return joiners

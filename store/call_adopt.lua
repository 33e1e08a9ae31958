-- KEYS[1] call
-- ARGV[1] instance and
-- ARGV[2] incarnation of the owner that is dead
-- ARGV[3] instance and
-- ARGV[4] incarnation of the new one
-- ARGV[5] time to live in ms
--
-- Returns 1 when it has been adopted, else 0, and the fields o, i, m, t, d, r as they are now.

local adopted = 0
local call = redis.call('HMGET', KEYS[1], 'o', 'i', 'm', 't', 'd', 'r')
if call[1] == ARGV[1] and call[2] == ARGV[2] and not call[5] then
  redis.call('HSET', KEYS[1], 'o', ARGV[3], 'i', ARGV[4])
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
  adopted, call[1], call[2] = 1, ARGV[3], ARGV[4]
end
return {adopted, call[1], call[2], call[3], call[4], call[5], call[6]}

-- KEYS[1]   meta, KEYS[2] trail, KEYS[3] session, KEYS[4…] interest of each channel
-- ARGV[1…5] as in channel_mark.lua
-- ARGV[6]   'new': the session gets the channels from now on; 'base': from the beginning of the epoch on; 'keep':
--           the session has them already, or else nothing happens; 'none': there is no session
-- ARGV[7]   time to live of the session in ms
-- ARGV[8]   clock and name of the incarnation's inbox, as a member of the interest sets
-- ARGV[9…]  names of the channels
--
-- Returns {epoch, sequence, token, base, 1 when done, then the session's fields and values}.

local mode = ARGV[6]
local function answer(done)
  local list = {epoch, string.format('%.0f', seq), token, string.format('%.0f', base), done}
  if mode == 'keep' then
    for _, v in ipairs(redis.call('HGETALL', KEYS[3])) do
      list[#list + 1] = v
    end
  end
  return list
end

if mode ~= 'none' then
  local of = redis.call('HGET', KEYS[3], '@epoch')
  if mode == 'keep' then
    if of ~= epoch then
      return answer(0)
    end
  else
    if of ~= epoch then
      redis.call('DEL', KEYS[3])
      redis.call('HSET', KEYS[3], '@epoch', epoch)
    end
    local since = string.format('%.0f', mode == 'base' and base or seq)
    for i = 9, #ARGV do
      redis.call('HSET', KEYS[3], ARGV[i], since)
    end
  end
  redis.call('PEXPIRE', KEYS[3], ARGV[7])
end
for i = 4, #KEYS do
  redis.call('SADD', KEYS[i], ARGV[8])
end
return answer(1)

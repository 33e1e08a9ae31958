-- Begins each script of a partition. KEYS[1] meta, KEYS[2] trail; ARGV[1] an epoch in case a new one is needed, ARGV[2],
-- ARGV[3] and ARGV[4] the epoch, the sequence and the token that the caller knows (token 0: not known), ARGV[5] '1'
-- when the caller has seen the sequence go back.
--
-- A partition that knows less than the caller, or has another message where the caller has one, has lost messages: it
-- goes on under a new epoch, so that no place in the lost history is taken for one in the new. base is where the epoch
-- began.

local meta = redis.call('HMGET', KEYS[1], 'epoch', 'seq', 'base', 'token')
local epoch, seq, base, token = meta[1], tonumber(meta[2] or '0'), tonumber(meta[3] or '0'), meta[4] or '0'

-- Whether the message of a number may have been published with a token. The trail says which had it, as far as it
-- reaches back.
local function may_be(number, its)
  if its == '0' then
    return true
  elseif number == seq then
    return its == token
  end
  local call = redis.call('XRANGE', KEYS[2], string.format('%.0f', number) .. '-0', '+', 'COUNT', 1)[1]
  if not call then
    return true
  end
  local last, its_own = string.match(call[1], '^(%d+)-(%d+)$')
  return its == its_own or number <= tonumber(last) - tonumber(call[2][2])
end

local known = tonumber(ARGV[3])
if not epoch or epoch == ARGV[2] and (ARGV[5] == '1' or seq < known or not may_be(known, ARGV[4])) then
  epoch, base = ARGV[1], seq
  redis.call('HSET', KEYS[1], 'epoch', epoch, 'seq', string.format('%.0f', seq), 'base', string.format('%.0f', base))
end


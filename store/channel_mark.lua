-- Begins each script of a partition. KEYS[1] meta; ARGV[1] an epoch in case a new one is needed, ARGV[2] and ARGV[3]
-- the epoch and the sequence that the caller knows, ARGV[4] '1' when the caller has seen the sequence go back.
--
-- A partition that knows less than the caller has lost messages: it goes on under a new epoch, so that no place in
-- the lost history is taken for one in the new. base is where the epoch began.

local meta = redis.call('HMGET', KEYS[1], 'epoch', 'seq', 'base')
local epoch, seq, base = meta[1], tonumber(meta[2] or '0'), tonumber(meta[3] or '0')
if not epoch or epoch == ARGV[2] and (ARGV[4] == '1' or seq < tonumber(ARGV[3])) then
  epoch, base = ARGV[1], seq
  redis.call('HSET', KEYS[1], 'epoch', epoch, 'seq', string.format('%.0f', seq), 'base', string.format('%.0f', base))
end


-- KEYS[1]   meta, KEYS[2…] for each channel of this call: history, state, interest
-- ARGV[1…4] as in channel_mark.lua
-- ARGV[5]   messages that a history keeps at least
-- ARGV[6]   bytes that a history keeps at most, about
-- ARGV[7]   time to live of a history in ms
-- ARGV[8]   prefix of the inboxes
-- ARGV[9]   cap of an inbox
-- ARGV[10]  byte that begins a channel message in an inbox
-- ARGV[11…] for each message: number of its channel, from 1, and its body
--
-- Numbers the messages, appends each to its channel's history, and gives all of them that an interested incarnation
-- wants to its inbox, as one entry. Returns {epoch, sequence of the last message}.

local most, bytes, prefix = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[8]
local members, grown, boxes, order = {}, {}, {}, {}
for i = 11, #ARGV, 2 do
  local channel, body = tonumber(ARGV[i]), ARGV[i + 1]
  seq = seq + 1
  local at = string.format('%.0f', seq)
  local history = KEYS[3 * channel - 1]
  redis.call('XADD', history, at .. '-0', 'm', body)
  if not grown[channel] then
    grown[channel] = 0
    members[channel] = redis.call('SMEMBERS', KEYS[3 * channel + 1])
  end
  grown[channel] = grown[channel] + #body
  local piece = ARGV[10] .. epoch .. at .. ' ' .. body
  for _, who in ipairs(members[channel]) do
    local box = boxes[who]
    if not box then
      box = {}
      boxes[who] = box
      order[#order + 1] = who
    end
    box[#box + 1] = piece
  end
end
redis.call('HSET', KEYS[1], 'seq', string.format('%.0f', seq))

for channel, size in pairs(grown) do
  local history, state = KEYS[3 * channel - 1], KEYS[3 * channel]
  local held = redis.call('HINCRBY', state, 'bytes', size)
  local length = redis.call('XLEN', history)
  local keep = length
  if length > most + math.floor(most / 4) + 1 then
    keep = most
  end
  if held > bytes then
    keep = math.min(keep, math.floor(length / 2))
  end
  if keep < length then
    -- The first entry that stays counts as trimmed too: what was before it is then known by its number.
    redis.call('XTRIM', history, 'MAXLEN', keep + 1)
    local first = redis.call('XRANGE', history, '-', '+', 'COUNT', 1)
    redis.call('HSET', state, 'trimmed', string.match(first[1][1], '%d+'),
      'bytes', string.format('%.0f', math.floor(held * (keep + 1) / length)))
  end
  redis.call('PEXPIRE', history, ARGV[7])
  redis.call('PEXPIRE', state, ARGV[7])
end

for _, who in ipairs(order) do
  local clock, inbox = string.match(who, '^(%d+) (.*)$')
  local id = redis.call('XADD', prefix .. inbox, 'NOMKSTREAM', 'MAXLEN', '~', ARGV[9], clock .. '-*', 'm', table.concat(boxes[who]))
  if not id then
    for channel in pairs(grown) do
      redis.call('SREM', KEYS[3 * channel + 1], who)
    end
  end
end
return {epoch, string.format('%.0f', seq)}

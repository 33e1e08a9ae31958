-- KEYS[1]   meta, KEYS[2] trail, KEYS[3…] for each channel of this call: history, state, interest
-- ARGV[1…5] as in channel_mark.lua
-- ARGV[6]   messages that a history keeps at least
-- ARGV[7]   bytes that a history keeps at most, about
-- ARGV[8]   time to live of a history in ms
-- ARGV[9]   prefix of the inboxes
-- ARGV[10]  cap of an inbox
-- ARGV[11]  byte that begins a channel message in an inbox
-- ARGV[12]  token of this call, in decimal
-- ARGV[13]  cap of the trail
-- ARGV[14…] for each message: number of its channel, from 1, and its body
--
-- Numbers the messages, appends each to its channel's history, and gives all of them that an interested incarnation
-- wants to its inbox, as one entry. Returns {epoch, sequence of the last message, token}.

local most, bytes, prefix = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[9]
token = ARGV[12]
local members, grown, boxes, order = {}, {}, {}, {}
for i = 14, #ARGV, 2 do
  local channel, body = tonumber(ARGV[i]), ARGV[i + 1]
  seq = seq + 1
  local at = string.format('%.0f', seq) .. '-' .. token
  local history = KEYS[3 * channel]
  redis.call('XADD', history, at, 'm', body)
  if not grown[channel] then
    grown[channel] = 0
    members[channel] = redis.call('SMEMBERS', KEYS[3 * channel + 2])
  end
  grown[channel] = grown[channel] + #body
  local piece = ARGV[11] .. epoch .. at .. ' ' .. body
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
local last = string.format('%.0f', seq)
redis.call('HSET', KEYS[1], 'seq', last, 'token', token)
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[13], last .. '-' .. token, 'n', (#ARGV - 13) / 2)

for channel, size in pairs(grown) do
  local history, state = KEYS[3 * channel], KEYS[3 * channel + 1]
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
  redis.call('PEXPIRE', history, ARGV[8])
  redis.call('PEXPIRE', state, ARGV[8])
end

for _, who in ipairs(order) do
  local clock, inbox = string.match(who, '^(%d+) (.*)$')
  local id = redis.call('XADD', prefix .. inbox, 'NOMKSTREAM', 'MAXLEN', '~', ARGV[10], clock .. '-*', 'm', table.concat(boxes[who]))
  if not id then
    for channel in pairs(grown) do
      redis.call('SREM', KEYS[3 * channel + 2], who)
    end
  end
end
return {epoch, last, token}

-- Decides a group of commands one after the other, and writes those that pass.
--
-- KEYS[1] log stream
-- KEYS[2] versions hash
-- ARGV[1] instance of the appending replica
-- ARGV[2] number of the aggregate that is its fence, 0 for none
-- ARGV[3] position at which the fence must be
-- ARGV[4] how many names follow; they are numbered from 1, and 1 is @head
-- then the names, then for each command:
--   cause, number of checks, number of events, number of arguments that the events take
--   for each check:  number of the aggregate, its version ('' = must not exist)
--   for each event:  type, schema, token, aggregates as text, data,
--                    count of writes, their numbers, count of ends, their numbers
--
-- Returns for each command: the list of positions when it is written; {number of the failed check from 1,
-- version that it has} when it is refused; 0 when it is fenced.

local log, versions = KEYS[1], KEYS[2]
local replica, fence, started, names = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local first = 4

-- All versions of the group are read once and kept up to date here.
local at = {}
for from = 1, names, 1000 do
  local to = math.min(from + 999, names)
  local got = redis.call('HMGET', versions, unpack(ARGV, first + from, first + to))
  for i = 1, to - from + 1 do
    at[from + i - 1] = got[i] or ''
  end
end
local previous = string.match(at[1], '%S+$') or ''

local touched = {}
local verdicts = {}
local failure

local function decide(a, checks)
  if fence > 0 and at[fence] ~= started then
    return 0
  end
  for c = 1, checks do
    local actual = at[tonumber(ARGV[a])]
    if actual ~= ARGV[a + 1] then
      return {c, actual}
    end
    a = a + 2
  end
end

local a = first + names + 1
while a <= #ARGV and not failure do
  local cause, checks, events, size = ARGV[a], tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
  local refusal = decide(a + 4, checks)
  a = a + 4 + 2 * checks
  if refusal then
    verdicts[#verdicts + 1] = refusal
    a = a + size
  else
    local positions = {}
    for e = 1, events do
      local token = ARGV[a + 2]
      local id = redis.pcall('XADD', log, '*', 't', ARGV[a], 's', ARGV[a + 1], 'u', token, 'p', previous,
        'c', cause, 'r', replica, 'k', ARGV[a + 3], 'd', ARGV[a + 4])
      if type(id) ~= 'string' then
        failure = id
        break
      end
      positions[e] = id
      previous = token
      at[1] = id .. ' ' .. token
      touched[1] = true
      local writes = tonumber(ARGV[a + 5])
      for w = 1, writes do
        local n = tonumber(ARGV[a + 5 + w])
        at[n] = id
        touched[n] = true
      end
      a = a + 6 + writes
      local ends = tonumber(ARGV[a])
      for w = 1, ends do
        local n = tonumber(ARGV[a + w])
        at[n] = ''
        touched[n] = true
      end
      a = a + 1 + ends
    end
    verdicts[#verdicts + 1] = positions
  end
end

-- What Redis refuses (memory, read only, too few replicas) it refuses at the first XADD. Should a later one fail
-- all the same, the versions still follow the entries that were written.
local sets, ended = {}, {}
for n in pairs(touched) do
  if at[n] == '' then
    ended[#ended + 1] = ARGV[first + n]
  else
    sets[#sets + 1] = ARGV[first + n]
    sets[#sets + 1] = at[n]
  end
end
for from = 1, #sets, 1000 do
  redis.call('HSET', versions, unpack(sets, from, math.min(from + 999, #sets)))
end
for from = 1, #ended, 1000 do
  redis.call('HDEL', versions, unpack(ended, from, math.min(from + 999, #ended)))
end

if failure then
  return failure
end
return verdicts

-- KEYS[1] log stream
-- KEYS[2] list of manifests of snapshots, the newest first
-- ARGV[1] how long entries are kept, in ms
-- ARGV[2] bytes that the log may take, 0 for any
-- ARGV[3] how long the group of a replica that is gone is kept, in ms
-- ARGV[4] newest schema of the snapshots that count
-- ARGV[5] how many of them there must be before anything goes
-- ARGV[6] key of a lease, without the instance; in the same slot as the log
-- ARGV[7…] instances that live
--
-- Returns {entries removed, bytes of the log, 1 if younger entries went for the sake of the bytes, 1 if it takes too
-- many and nothing may go, 1 if there is more to do, then the instances whose groups were destroyed}.

local log = KEYS[1]
local keep, memory, forget = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
-- One call removes about this much at most: 10,000 entries take 1 to 2 ms.
local page, careful = 10000, 1000

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local answer = {0, 0, 0, 0, 0}
if redis.call('EXISTS', log) == 0 then
  return answer
end

local live = {}
for i = 7, #ARGV do
  live[ARGV[i]] = true
end

local function parse(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return {tonumber(ms), tonumber(seq), id}
end

local function lower(a, b)
  if not a or b[1] < a[1] or b[1] == a[1] and b[2] < a[2] then
    return b
  end
  return a
end

local function fields(flat)
  local by = {}
  for i = 1, #flat, 2 do
    by[flat[i]] = flat[i + 1]
  end
  return by
end

-- Where the groups need the log from: of all that stay, and of those that live.
local held, heldLive
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', log)) do
  local group = fields(flat)
  local instance = string.match(group['name'], '^replica:(.*)$')
  if instance then
    local lives = live[instance] or redis.call('EXISTS', ARGV[6] .. instance) == 1
    local gone
    if not lives then
      -- A living replica reads its group twice a second, also when nothing comes. One that was never read from is as
      -- old as what it was to begin after; the embedded Redis does not always know the idle time, and says -1.
      gone = now - parse(group['last-delivered-id'])[1]
      for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', log, group['name'])) do
        local idle = tonumber(fields(consumer)['idle'])
        if idle >= 0 then
          gone = math.min(gone, idle)
        end
      end
    end
    if gone and gone > forget then
      redis.call('XGROUP', 'DESTROY', log, group['name'])
      answer[#answer + 1] = instance
    else
      local from = parse(group['last-delivered-id'])
      if tonumber(group['pending']) > 0 then
        local oldest = redis.call('XPENDING', log, group['name'])[2]
        if oldest then
          from = lower(from, parse(oldest))
        end
      end
      held = lower(held, from)
      if lives then
        heldLive = lower(heldLive, from)
      end
    end
  end
end

-- Where the snapshots need it from. One counts if the log goes on from it.
local function goesOn(snapshot)
  local entry = redis.call('XRANGE', log, snapshot.position, '+', 'COUNT', 1)[1]
  if not entry then
    return false
  end
  local field = entry[1] == snapshot.position and 'u' or 'p'
  return fields(entry[2])[field] == snapshot.token
end

local snapshot
local manifests = redis.call('LRANGE', KEYS[2], 0, -1)
local counted = 0
for _, text in ipairs(manifests) do
  local readable, manifest = pcall(cjson.decode, text)
  if readable and type(manifest) == 'table' and manifest.schema <= tonumber(ARGV[4]) and
    type(manifest.position) == 'string' and goesOn(manifest) then
    counted = counted + 1
    snapshot = lower(snapshot, parse(manifest.position))
  end
end

local function usage()
  local bytes = redis.pcall('MEMORY', 'USAGE', log)
  return type(bytes) == 'number' and bytes or 0
end
answer[2] = usage()

if counted >= tonumber(ARGV[5]) then
  local old = parse(string.format('%.0f-0', math.max(0, now - keep)))
  local cut = lower(snapshot, old)
  if held then
    cut = lower(cut, held)
  end
  -- Whole nodes first, then what is left of one: both are bounded.
  local removed = redis.call('XTRIM', log, 'MINID', '~', cut[3])
  if removed < page then
    removed = removed + redis.call('XTRIM', log, 'MINID', '=', cut[3])
  else
    answer[5] = 1
  end
  answer[1] = removed
  if memory > 0 and answer[5] == 0 then
    answer[2] = usage()
    if answer[2] > memory then
      local most = snapshot
      if heldLive then
        most = lower(most, heldLive)
      end
      local more = redis.call('XTRIM', log, 'MINID', '~', most[3], 'LIMIT', careful)
      if more == 0 then
        more = redis.call('XTRIM', log, 'MINID', '=', most[3])
      end
      if more > 0 then
        answer[1] = answer[1] + more
        answer[2] = usage()
        answer[3] = 1
        answer[5] = answer[2] > memory and 1 or 0
      end
    end
  end
end
if memory > 0 and answer[2] > memory and answer[5] == 0 then
  answer[4] = 1
end
return answer

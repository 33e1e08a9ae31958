-- KEYS[1] list of manifests, the newest first
-- KEYS[2] chunks of the new snapshot
-- KEYS[3] lease of the keeper
-- ARGV[1] manifest, JSON
-- ARGV[2] how many chunks there must be
-- ARGV[3] who must hold the lease
-- ARGV[4] how many snapshots are kept
-- ARGV[5] key of a snapshot's chunks, without its id; in the same slot as the others
--
-- Returns 'listed'; 'lost' when another one is the keeper, or none; 'short' when chunks are missing.

if redis.call('GET', KEYS[3]) ~= ARGV[3] then
  redis.call('UNLINK', KEYS[2])
  return 'lost'
end
if redis.call('HLEN', KEYS[2]) ~= tonumber(ARGV[2]) then
  return 'short'
end
redis.call('PERSIST', KEYS[2])
redis.call('LPUSH', KEYS[1], ARGV[1])
while redis.call('LLEN', KEYS[1]) > tonumber(ARGV[4]) do
  local readable, old = pcall(cjson.decode, redis.call('RPOP', KEYS[1]))
  if readable and type(old) == 'table' and type(old.id) == 'string' then
    redis.call('UNLINK', ARGV[5] .. old.id)
  end
end
return 'listed'

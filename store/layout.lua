-- KEYS[1] layout hash
-- KEYS[2] lock of the layout
-- ARGV[1] holder
-- ARGV[2] version that the layout must have
-- ARGV[3] its new version
-- ARGV[4] the oldest version that programs must know
--
-- Returns 1 when it was set, 0 when the lock or the version is not as it must be.

if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  return 0
end
if (redis.call('HGET', KEYS[1], 'version') or '0') ~= ARGV[2] then
  return 0
end
redis.call('HSET', KEYS[1], 'version', ARGV[3], 'oldest', ARGV[4])
return 1

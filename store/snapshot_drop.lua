-- KEYS[1] list of manifests
-- KEYS[2] chunks of the snapshot
-- ARGV[1] its manifest, as it is listed
--
-- Returns how many were taken off the list.

redis.call('UNLINK', KEYS[2])
return redis.call('LREM', KEYS[1], 0, ARGV[1])

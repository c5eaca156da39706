-- Take a checkpoint away, all of it.
-- KEYS  metas: hash path -> meta; records: hash path -> record; index: zset path -> microseconds;
--       over: set of holders
-- ARGV  path, prefix of chunks
-- gives how many there were, and 1 if there are contents to let go of
local found = redis.call('HGET', KEYS[2], ARGV[1])
local there = redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
if found then
    local record = cjson.decode(found)
    if record.holds then
        redis.call('SADD', KEYS[4], record.holds.nonce)
    end
    for part, of in pairs(record.parts) do
        for n = 0, of.count - 1 do
            redis.call('UNLINK', ARGV[2] .. of.nonce .. ':' .. part .. ':' .. n)
        end
    end
end
return {there, redis.call('EXISTS', KEYS[4])}

-- Take away chunks of a write that failed, unless it was committed after all: a reply may have been lost.
-- A commit that comes after this finds that chunks are gone, and does not happen.
-- KEYS  records: hash path -> record; staging: hash nonce -> …
-- ARGV  path, nonce, keys of chunks
-- gives 1, or 0 if it was committed
local found = redis.call('HGET', KEYS[1], ARGV[1])
if found then
    for _, of in pairs(cjson.decode(found).parts) do
        if of.nonce == ARGV[2] then
            return 0
        end
    end
end
for n = 3, #ARGV do
    redis.call('UNLINK', ARGV[n])
end
redis.call('HDEL', KEYS[2], ARGV[2])
return 1

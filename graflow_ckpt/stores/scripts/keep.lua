-- A content that was placed is whole: its chunks stay, and saves find it under its name.
-- KEYS  staging: hash nonce -> {session, epoch, at}; contents: hash name -> nonce, size, count
-- ARGV  save, nonce, size, number of chunks, name
-- gives 1; 0 if the save was cleared away; -1 if chunks are gone
-- If somebody else was faster, that one is held. Ours goes with the save, which goes on holding it by its nonce.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    return 0
end
local save, nonce, count, name, root = ARGV[1], ARGV[2], tonumber(ARGV[4]), ARGV[5], KEYS[2] .. ':'
local ours = nonce .. ' ' .. ARGV[3] .. ' ' .. ARGV[4]
local found = redis.call('HGET', KEYS[2], name)
if found and found ~= ours then
    redis.call('SADD', root .. 'by:' .. string.match(found, '%x+'), save)
    redis.call('HSET', root .. 'of:' .. save, name, found)
    return 1
end
for n = 0, count - 1 do
    if redis.call('EXISTS', root .. 'in:' .. nonce .. ':' .. n) == 0 then
        return -1
    end
end
redis.call('HSET', root .. 'of:' .. save, name, ours)
redis.call('HDEL', root .. 'of:' .. save, nonce)
redis.call('HSET', KEYS[2], name, ours)
for n = 0, count - 1 do
    redis.call('PERSIST', root .. 'in:' .. nonce .. ':' .. n)
end
return 1

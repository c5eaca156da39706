-- Find a content that a checkpoint holds, with all of its chunks; or have saves find it no more.
-- KEYS  records: hash path -> record; contents: hash name -> nonce, size, count
-- ARGV  path, name, stage, 1 if it is damaged
-- gives nonce, size and number of chunks in one text, or nothing if the checkpoint holds no such content
local record = redis.call('HGET', KEYS[1], ARGV[1])
local holds = record and cjson.decode(record).holds
if not holds or holds.stage ~= ARGV[3] then
    return ''
end
local found = redis.call('HGET', KEYS[2] .. ':of:' .. holds.nonce, ARGV[2])
if not found then
    return ''
end
if ARGV[4] == '1' then
    if redis.call('HGET', KEYS[2], ARGV[2]) == found then
        redis.call('HDEL', KEYS[2], ARGV[2])
    end
    return found
end
local nonce, count = string.match(found, '(%x+) %d+ (%d+)')
for n = 0, count - 1 do
    if redis.call('EXISTS', KEYS[2] .. ':in:' .. nonce .. ':' .. n) == 0 then
        return ''
    end
end
return found

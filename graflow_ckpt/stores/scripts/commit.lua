-- Point a path at what was staged, whole or not at all; what it pointed at before goes.
-- KEYS  fence: hash {epoch, nonce}; metas: hash path -> meta; records: hash path -> record;
--       index: zset path -> microseconds; staging: hash nonce -> …
-- ARGV  epoch and claim, or nothing twice; path, nonce, meta, prefix of chunks,
--       then per part its name, stage, size, number of chunks, and its last chunk, or nothing if that is there
-- gives OK; FENCED if the session is not ours; or the name of a part that is not all there
-- Chunk keys are built here from the prefix: they are in the slot of the others, and those of the former
-- record are known to nobody else.
if ARGV[1] ~= '' then
    local held = redis.call('HMGET', KEYS[1], 'epoch', 'nonce')
    if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then
        return 'FENCED'
    end
end
local path, nonce, prefix = ARGV[3], ARGV[4], ARGV[6]
local former = redis.call('HGET', KEYS[3], path)
local record = former and cjson.decode(former) or {parts = {}}
if record.nonce == nonce then -- the reply to this very commit was lost
    return 'OK'
end
local parts, gone = record.parts, {}
local function key(part, n)
    return prefix .. nonce .. ':' .. part .. ':' .. n
end
for at = 7, #ARGV, 5 do
    local staged = tonumber(ARGV[at + 3]) - (ARGV[at + 4] == '' and 0 or 1)
    for n = 0, staged - 1 do
        if redis.call('EXISTS', key(ARGV[at], n)) == 0 then
            return ARGV[at]
        end
    end
end
for at = 7, #ARGV, 5 do -- the first write is one that a full server refuses: after it, nothing is refused
    if ARGV[at + 4] ~= '' then
        redis.call('SET', key(ARGV[at], ARGV[at + 3] - 1), ARGV[at + 4])
    end
end
for at = 7, #ARGV, 5 do
    local part, count = ARGV[at], tonumber(ARGV[at + 3])
    for n = 0, count - (ARGV[at + 4] == '' and 1 or 2) do
        redis.call('PERSIST', key(part, n))
    end
    if parts[part] then
        gone[part] = parts[part]
    end
    parts[part] = {nonce = nonce, stage = ARGV[at + 1], size = ARGV[at + 2], count = count}
end
local time = redis.call('TIME')
redis.call('HSET', KEYS[2], path, ARGV[5])
redis.call('HSET', KEYS[3], path, cjson.encode({nonce = nonce, parts = parts}))
redis.call('ZADD', KEYS[4], time[1] * 1000000 + time[2], path)
redis.call('HDEL', KEYS[5], nonce)
for part, old in pairs(gone) do
    for n = 0, old.count - 1 do
        redis.call('UNLINK', prefix .. old.nonce .. ':' .. part .. ':' .. n)
    end
end
return 'OK'

-- Point a path at what was staged, whole or not at all; what it pointed at before goes.
-- KEYS  fence: hash {epoch, nonce}; metas: hash path -> meta; records: hash path -> record;
--       index: zset path -> microseconds; staging: hash nonce -> …; contents: hash name -> nonce, size, count;
--       over: set of holders
-- ARGV  epoch and claim, or nothing twice; path, nonce, meta, prefix of chunks, stage, number of contents,
--       their names, then per part its name, size, number of chunks, and its last chunk, or nothing if it is there
-- gives OK, or FREE if there are contents to let go of; FENCED if the session is not ours; OTHER if a meta alone is
-- of another stage; the name of a part that is not all there; or a list of contents that are not there
-- Chunk keys are built here from the prefix: those of the former record are known to nobody else.
local function done()
    return redis.call('EXISTS', KEYS[7]) == 1 and 'FREE' or 'OK'
end
if ARGV[1] ~= '' then
    local fence = redis.call('HMGET', KEYS[1], 'epoch', 'nonce')
    if fence[1] ~= ARGV[1] or fence[2] ~= ARGV[2] then
        return 'FENCED'
    end
end
local path, nonce, prefix, stage = ARGV[3], ARGV[4], ARGV[6], ARGV[7]
local first = 9 + ARGV[8] -- of the parts
local former = redis.call('HGET', KEYS[3], path)
local record = former and cjson.decode(former) or {parts = {}}
if record.nonce == nonce then -- the reply to this very commit was lost
    return done()
end
local parts, gone = record.parts, {}
if first > #ARGV and next(parts) then -- a meta alone: for what is there, or for nothing
    local fits = false
    for _, part in pairs(parts) do
        fits = fits or part.stage == stage
    end
    if not fits then
        return 'OTHER'
    end
end
local function key(part, n)
    return prefix .. nonce .. ':' .. part .. ':' .. n
end
for at = first, #ARGV, 4 do
    local staged = tonumber(ARGV[at + 2]) - (ARGV[at + 3] == '' and 0 or 1)
    for n = 0, staged - 1 do
        if redis.call('EXISTS', key(ARGV[at], n)) == 0 then
            return ARGV[at]
        end
    end
end
local holds, held, missing = record.holds, {}, {}
local own = holds and holds.stage == stage and KEYS[6] .. ':of:' .. holds.nonce -- with those that were distrusted
for at = 9, first - 1 do
    local found = redis.call('HGET', KEYS[6], ARGV[at]) or own and redis.call('HGET', own, ARGV[at])
    if found then
        held[ARGV[at]] = found
    else
        missing[#missing + 1] = ARGV[at]
    end
end
if #missing > 0 then
    return missing
end
for at = first, #ARGV, 4 do -- the first write is one that a full server refuses: after it, nothing is refused
    if ARGV[at + 3] ~= '' then
        redis.call('SET', key(ARGV[at], ARGV[at + 2] - 1), ARGV[at + 3])
    end
end
for at = first, #ARGV, 4 do
    local part, count = ARGV[at], tonumber(ARGV[at + 2])
    for n = 0, count - (ARGV[at + 3] == '' and 1 or 2) do
        redis.call('PERSIST', key(part, n))
    end
    if parts[part] then
        gone[part] = parts[part]
    end
    parts[part] = {nonce = nonce, stage = stage, size = ARGV[at + 1], count = count}
end
for name, found in pairs(held) do
    redis.call('SADD', KEYS[6] .. ':by:' .. string.match(found, '%x+'), nonce)
    redis.call('HSET', KEYS[6] .. ':of:' .. nonce, name, found)
end
if holds then
    redis.call('SADD', KEYS[7], holds.nonce)
end
holds = first > 9 and {nonce = nonce, stage = stage} or nil
local time = redis.call('TIME')
redis.call('HSET', KEYS[2], path, ARGV[5])
redis.call('HSET', KEYS[3], path, cjson.encode({nonce = nonce, parts = parts, holds = holds}))
redis.call('ZADD', KEYS[4], time[1] * 1000000 + time[2], path)
redis.call('HDEL', KEYS[5], nonce)
for part, old in pairs(gone) do
    for n = 0, old.count - 1 do
        redis.call('UNLINK', prefix .. old.nonce .. ':' .. part .. ':' .. n)
    end
end
return done()

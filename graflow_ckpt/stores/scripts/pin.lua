-- Hold contents that a save has found, for as long as it is under way. The first call announces the save.
-- KEYS  fence: hash {epoch, nonce}; staging: hash nonce -> {session, epoch, at};
--       contents: hash name -> nonce, size, count
-- ARGV  epoch and claim, or nothing twice; save, session, 1 if the save begins, names
-- gives the names that are there; 0 if the session is not ours; -1 if the save was cleared away
-- A content that has lost chunks (maxmemory-policy) is not there: it is stored anew.
if ARGV[1] ~= '' then
    local fence = redis.call('HMGET', KEYS[1], 'epoch', 'nonce')
    if fence[1] ~= ARGV[1] or fence[2] ~= ARGV[2] then
        return 0
    end
end
local save, root, there = ARGV[3], KEYS[3] .. ':', {}
if ARGV[5] == '1' then
    local at = redis.call('TIME')[1]
    redis.call('HSET', KEYS[2], save, cjson.encode({session = ARGV[4], epoch = ARGV[1], at = at}))
elseif redis.call('HEXISTS', KEYS[2], save) == 0 then
    return -1
end
local function is_whole(nonce, count)
    for n = 0, count - 1 do
        if redis.call('EXISTS', root .. 'in:' .. nonce .. ':' .. n) == 0 then
            return false
        end
    end
    return true
end
for at = 6, #ARGV do
    local name = ARGV[at]
    local found = redis.call('HGET', KEYS[3], name)
    if found then
        local nonce, count = string.match(found, '(%x+) %d+ (%d+)')
        if is_whole(nonce, count) then
            redis.call('SADD', root .. 'by:' .. nonce, save)
            redis.call('HSET', root .. 'of:' .. save, name, found)
            there[#there + 1] = name
        else
            redis.call('HDEL', KEYS[3], name)
        end
    end
end
return there

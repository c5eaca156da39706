-- Take away what those held that are over (checkpoints that were deleted or replaced, saves that have ended) and
-- nobody else holds. In steps: of thousands of keys no more go at once than others can wait for.
-- KEYS  contents: hash name -> nonce, size, count; over: set of holders; staging: hash nonce -> …
-- ARGV  keys that may go in this step, a save that is over or nothing
-- gives how many contents went, and 1 if there is more to do
local root, left, gone = KEYS[1] .. ':', tonumber(ARGV[1]), 0
if ARGV[2] ~= '' then
    redis.call('HDEL', KEYS[3], ARGV[2]) -- from here on it holds nothing more
    redis.call('SADD', KEYS[2], ARGV[2])
end
local function take_away(name, found, of)
    local nonce, size, count = string.match(found, '(%x+) (%d+) (%d+)')
    if redis.call('EXISTS', root .. 'by:' .. nonce) == 1 then
        return true
    end
    if redis.call('HGET', KEYS[1], name) == found then
        redis.call('HDEL', KEYS[1], name)
    end
    local n = tonumber(count)
    while n > 0 and left > 0 do
        n, left = n - 1, left - 1
        redis.call('UNLINK', root .. 'in:' .. nonce .. ':' .. n)
    end
    if n > 0 then
        redis.call('HSET', of, name, nonce .. ' ' .. size .. ' ' .. n)
        return false
    end
    gone = gone + 1
    return true
end
local holder = redis.call('SRANDMEMBER', KEYS[2])
while holder do
    local of = root .. 'of:' .. holder
    local held = redis.call('HGETALL', of)
    for at = 1, #held, 2 do
        local name, found = held[at], held[at + 1]
        redis.call('SREM', root .. 'by:' .. string.match(found, '%x+'), holder)
        left = left - 1
        if left < 0 or not take_away(name, found, of) then
            return {gone, 1}
        end
        redis.call('HDEL', of, name)
    end
    redis.call('SREM', KEYS[2], holder)
    holder = redis.call('SRANDMEMBER', KEYS[2])
end
return {gone, 0}

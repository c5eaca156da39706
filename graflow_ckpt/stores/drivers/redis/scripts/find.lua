-- The newest things that have all of some facts.
-- KEYS  rows; a zset number -> key for each fact
-- ARGV  limit, and the number below which to look, or +inf
-- gives number, key and listed bytes of each, one after the other
local rows = table.remove(KEYS, 1)
local least, size = KEYS[1], nil
for _, key in ipairs(KEYS) do
    local count = redis.call('ZCARD', key)
    if not size or count < size then
        least, size = key, count
    end
end
local function listed(key)
    return tonumber((redis.call('HGET', rows, key) or ''):match('^%d+') or 0)
end
local found, below, limit = {}, ARGV[2], tonumber(ARGV[1])
while #found < 3 * limit do
    local page = redis.call('ZREVRANGEBYSCORE', least, below, '-inf', 'WITHSCORES', 'LIMIT', 0, 100)
    for i = 1, #page, 2 do
        local fits = #found < 3 * limit
        for _, key in ipairs(KEYS) do
            fits = fits and redis.call('ZSCORE', key, page[i])
        end
        if fits then
            found[#found + 1] = page[i + 1]
            found[#found + 1] = page[i]
            found[#found + 1] = redis.call('GETRANGE', page[i], 20, 19 + listed(page[i]))
        end
    end
    if #page == 0 then
        return found
    end
    below = '(' .. page[#page]
end
return found

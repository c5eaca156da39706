-- Carry out a batch, or nothing.
-- KEYS  names: zset of all keys; rows: hash key -> bytes that are listed, and facts, in lines that begin with a
--       colon: with one behind its name a zset number -> key;
--       then the guards, the puts, the drops, the needs, and what has been written ahead
-- ARGV  tag; numbers of guards, puts, drops; for each guard its tag, or - for none; for each put how (1: fresh,
--       0: whatever is there, 2: fresh, and has been written ahead), its facts, and its bytes, or their key there
-- gives 1, or 0 if something does not hold
-- A thing is one string: twelve bytes of tag, eight of time, and its bytes.
local names, rows, tag = KEYS[1], KEYS[2], ARGV[1]
local guards, puts, drops = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local at, first = 2, 4 + guards
local function refused() -- what has been written ahead goes
    for i = 1, puts do
        if ARGV[first + 3 * i - 2] == '2' then
            redis.call('UNLINK', ARGV[first + 3 * i])
        end
    end
    return 0
end
for i = 1, guards do
    local wanted = ARGV[4 + i]
    if redis.call('GETRANGE', KEYS[at + i], 0, 11) ~= (wanted == '-' and '' or wanted) then
        return refused()
    end
end
at = at + guards
for i = 1, puts do
    if ARGV[first + 3 * i - 2] ~= '0' and redis.call('EXISTS', KEYS[at + i]) == 1 then
        return refused()
    end
end
for i = at + puts + drops + 1, #KEYS do
    if redis.call('EXISTS', KEYS[i]) == 0 then
        return refused()
    end
end
local time = redis.call('TIME')
local head = tag .. struct.pack('>d', time[1] + time[2] / 1000000)
for i = 1, puts do -- the first write is one that a full server refuses: after it, nothing is refused
    local how, facts, key = ARGV[first + 3 * i - 2], ARGV[first + 3 * i - 1], KEYS[at + i]
    if how == '2' then
        redis.call('RENAME', ARGV[first + 3 * i], key)
        redis.call('PERSIST', key)
    else
        redis.call('SET', key, head .. ARGV[first + 3 * i])
    end
    redis.call('ZADD', names, 0, key)
    if facts ~= '' then
        local number = redis.call('HINCRBY', rows, '', 1)
        redis.call('HSET', rows, key, facts)
        for fact in facts:gmatch(':[^\n]*') do
            redis.call('ZADD', rows .. fact, number, key)
        end
    end
end
at = at + puts
for i = 1, drops do
    local key = KEYS[at + i]
    local facts = redis.call('HGET', rows, key)
    redis.call('UNLINK', key)
    redis.call('ZREM', names, key)
    if facts then
        redis.call('HDEL', rows, key)
        for fact in facts:gmatch(':[^\n]*') do
            redis.call('ZREM', rows .. fact, key)
        end
    end
end
return 1

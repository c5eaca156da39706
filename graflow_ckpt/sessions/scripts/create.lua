-- A session is accepted, unless there is one of that name. It is `init` until its first specs are in.
-- KEYS[1] graflow:{S}:c   ARGV line, then fields and values of h   Reply "created" | "exists"
if redis.call('EXISTS', KEYS[1]) == 1 then return 'exists' end
local h = string.sub(KEYS[1], 1, -2) .. 'h'
redis.call('HLEN', h) -- of nobody else
redis.call('DEL', h)
redis.call('HSET', h, unpack(ARGV, 2))
local t = redis.call('TIME') -- no token of an earlier session of that name is one of this
redis.call('HSET', h, 'tokens', string.format('%d%03d', t[1], math.floor(tonumber(t[2]) / 1000)))
redis.call('HSET', KEYS[1], 'c', ARGV[1], 'format', '@FORMAT@')
return 'created'

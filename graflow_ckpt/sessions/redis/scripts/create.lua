-- A session is accepted, unless there is one of that name. It is `init` until its first specs are in.
-- KEYS[1] graflow:{S}:c, then lists   ARGV line token nonce, then fields and values of h   Reply "created" | "exists"
--   token, nonce  of its maker, whose next transition has to follow this: so it never writes to another one's
if redis.call('EXISTS', KEYS[1]) == 1 then return 'exists' end
local h = string.sub(KEYS[1], 1, -2) .. 'h'
redis.call('HLEN', h) -- of nobody else
--LISTED--
redis.call('DEL', h)
redis.call('HSET', h, 'created', made, unpack(ARGV, 4))
redis.call('SET', string.sub(KEYS[1], 1, -2) .. 'x:' .. ARGV[2], ARGV[3] .. '\30\30', 'EX', 600)
redis.call('HSET', KEYS[1], 'c', ARGV[1], 'format', '@FORMAT@')
return 'created'

-- The keeper's breath: the lease goes on, unless the token is void.
-- KEYS[1] graflow:{S}:c   ARGV token lease_ms   Reply status, or "fenced" | "gone"
local call = redis.call
local P = string.sub(KEYS[1], 1, -2)
local line = call('GET', KEYS[1])
if not line then return 'gone' end
if not call('ZSCORE', P .. 'tok', ARGV[1]) then return 'fenced' end
local t = call('TIME')
call('ZADD', P .. 'tok', tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000) + ARGV[2], ARGV[1])
return string.match(line, '^[^|]*')

-- A token that still waits in its queue is left there for so many milliseconds more, unless somebody has begun on it.
-- KEYS[1] graflow:{S}:c   ARGV token ms   Reply 1 | 0
local call = redis.call
local P = string.sub(KEYS[1], 1, -2)
if not call('ZSCORE', P .. 'tok', ARGV[1]) or call('HEXISTS', P .. 'own', ARGV[1]) == 1 then return 0 end
local t = call('TIME')
call('ZADD', P .. 'tok', tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000) + ARGV[2], ARGV[1])
return 1

-- The keeper's breath: the lease goes on, unless the token is void.
-- KEYS[1] graflow:{S}:c   ARGV token lease_ms now   Reply status, or "fenced" | "gone"
local call = redis.call
local P = string.sub(KEYS[1], 1, -2)
--KNOWN--
if not line then return 'gone' end
if not call('ZSCORE', P .. 'tok', ARGV[1]) or call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 'fenced' end
local now = ARGV[3] or ''
if now == '' then
  local t = call('TIME')
  now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end
call('ZADD', P .. 'tok', now + ARGV[2], ARGV[1])
return string.match(line, '^[^|]*')

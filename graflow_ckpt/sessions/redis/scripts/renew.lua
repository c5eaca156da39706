-- The keeper's breath: the lease goes on, unless the token is void, or another one has begun on it.
-- KEYS[1] graflow:{S}:c   ARGV token sender lease_ms now   Reply status, or "fenced" | "gone"
local call = redis.call
local P = string.sub(KEYS[1], 1, -2)
--KNOWN--
if not line then return 'gone' end
local last = call('HGET', KEYS[1], ARGV[1])
if not last or string.match(last, '^%d+_%d+_([^\30]*)') ~= ARGV[2] then return 'fenced' end
if not call('ZSCORE', P .. 'tok', ARGV[1]) then return 'fenced' end
local now = ARGV[4] or ''
if now == '' then
  local t = call('TIME')
  now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end
call('HDEL', KEYS[1], '') -- of nothing: a full server lets pass what begins so, and a release begins so, too
call('ZADD', P .. 'tok', now + ARGV[3], ARGV[1])
return string.match(line, '^[^|]*')

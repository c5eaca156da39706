-- A slice begins on a token, or makes one for itself (token ""): from here on its lease runs.
-- KEYS[1] graflow:{S}:c   ARGV token owner lease_ms queue now   Reply status token, or "gone" | "fenced"
local call = redis.call
local P = string.sub(KEYS[1], 1, -2)
local line = call('GET', KEYS[1])
if not line then return {'gone'} end
local token, owner = ARGV[1], ARGV[2]
if token == '' then
  token = 'e' .. call('HGET', P .. 'h', 'epoch') .. 't' .. call('HINCRBY', P .. 'h', 'tokens', 1)
else
  if not call('ZSCORE', P .. 'tok', token) then return {'fenced'} end
  local other = call('HGET', P .. 'own', token)
  if other and other ~= owner then return {'fenced'} end
end
local now = ARGV[5]
if now == '' then
  local t = call('TIME')
  now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end
call('HSET', P .. 'own', token, owner)
call('HSETNX', P .. 'rp', token, '0\30\30')
call('ZADD', P .. 'tok', now + ARGV[3], token)
if call('HGET', P .. 'qt', ARGV[4]) == token then call('HDEL', P .. 'qt', ARGV[4]) end
return {string.match(line, '^[^|]*'), token}

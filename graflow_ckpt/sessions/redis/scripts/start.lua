-- A slice begins on a token, or makes one for itself (token ""): from here on its lease runs.
-- KEYS[1] graflow:{S}:c   ARGV token owner lease_ms now nonce   Reply status token queue nonce [run], or "gone" | "fenced"
--   nonce  1_0_SENDER, what its first transition has to follow; the one that is answered counts
local call = redis.call
local P = string.sub(KEYS[1], 1, -2)
--KNOWN--
if not line then return {'gone'} end
local token, owner, queue, nonce = ARGV[1], ARGV[2], '*', ARGV[5]
if string.find(string.match(line, '^' .. string.rep('[^|]*|', 8) .. '([^|]*)|'), 'e', 1, true) then return {'fenced'} end
if token == '' then
  local number = call('HINCRBY', P .. 'h', 'tokens', 1)
  token = 'e' .. (call('HGET', P .. 'h', 'epoch') or '0') .. 't' .. number .. '_' .. nonce
else
  if not call('ZSCORE', P .. 'tok', token) then return {'fenced'} end
  local other = call('HGET', P .. 'own', token)
  if other then
    other, queue = string.match(other, '^(.*)\30([^\30]*)$')
    local began = call('HGET', KEYS[1], token) -- the same request again is answered, a used token is not given out
    if other ~= owner or not began or string.sub(began, 1, 4) ~= '1_0_' then return {'fenced'} end
    nonce = string.match(began, '^[^\30]*')
  else
    local waiting = call('HGETALL', P .. 'qt')
    for n = 1, #waiting, 2 do
      if waiting[n + 1] == token then
        queue = waiting[n]
        call('HDEL', P .. 'qt', queue)
      end
    end
  end
end
local now = ARGV[4]
if now == '' then
  local t = call('TIME')
  now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end
call('HSET', P .. 'own', token, owner .. '\30' .. queue)
call('HSETNX', KEYS[1], token, nonce .. '\30\30')
call('ZADD', P .. 'tok', now + ARGV[3], token)
return {string.match(line, '^[^|]*'), token, queue, nonce, call('HGET', P .. 'h', 'run') or nil}

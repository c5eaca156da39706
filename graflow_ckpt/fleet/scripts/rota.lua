-- The stewards' rota: what was found out is noted, and the next sessions are handed out, to one steward each.
-- KEYS[1] graflow:active (any zset of names by time)   ARGV now limit pause (name expected next)*
--   now    ms, or "" for the server's clock     pause  ms after which another steward takes what this one took
--   next   ms, or "" to take the name off; only if its time is still the expected one: somebody may have asked
--          for an earlier look meanwhile
-- Reply    now, the earliest time that is left ("" if there is none), name…
local call = redis.call
local now = tonumber(ARGV[1])
if not now then
  local t = call('TIME')
  now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end
for i = 4, #ARGV, 3 do
  local score = call('ZSCORE', KEYS[1], ARGV[i])
  if score and tonumber(score) == tonumber(ARGV[i + 1]) then
    if ARGV[i + 2] == '' then call('ZREM', KEYS[1], ARGV[i]) else call('ZADD', KEYS[1], ARGV[i + 2], ARGV[i]) end
  end
end
local reply = {now, ''}
local names = call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[2])
for n, name in ipairs(names) do
  call('ZADD', KEYS[1], now + ARGV[3], name)
  reply[n + 2] = name
end
local first = call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if first[2] then reply[2] = first[2] end
return reply

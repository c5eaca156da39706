-- A worker cannot run the program of a session: that is noted, and what follows is found out.
-- KEYS[1] graflow:{S}:c   ARGV token who place why patience_ms now shortest_ms longest_ms
--   now    ms, or "" for the server's clock
-- Reply   what since until
--   what   "gone" | "overdue": nobody has had it for that long · "again": others may be asked at once
--          "rest": all who wait have been asked, and time has to pass: more with every round
--   since  ms for which nobody has had it   until  ms, when it may go round again
-- h: declined (ms since when, 0: nobody is waited for), declined:PLACE (why), decliners (round who who …)
local call = redis.call
local P = string.sub(KEYS[1], 1, -2)
--KNOWN--
if not line then return {'gone', 0, 0} end
local now = tonumber(ARGV[6])
if not now then
  local t = call('TIME')
  now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end
local h = P .. 'h'

-- somebody has it who has committed in its slice: who has just begun may be about to decline, too
local function at_work()
  for _, token in ipairs(call('HKEYS', P .. 'own')) do
    local last = token ~= ARGV[1] and call('HGET', KEYS[1], token)
    if last and string.sub(last, 1, 4) ~= '1_0_' then return true end
  end
  return false
end

local since = now
if at_work() then -- then nobody waits for it
  for _, name in ipairs(call('HKEYS', h)) do
    if string.sub(name, 1, 8) == 'declined' then call('HDEL', h, name) end
  end
else
  local noted = tonumber(call('HGET', h, 'declined') or '0')
  if noted > 0 then since = noted end
  call('HSET', h, 'declined', string.format('%.0f', since), 'declined:' .. ARGV[3], ARGV[4])
end
if now - since > tonumber(ARGV[5]) then
  call('HSET', h, 'declined', '0')
  call('HDEL', h, 'decliners')
  return {'overdue', now - since, now}
end
local round, asked = string.match(call('HGET', h, 'decliners') or '0 ', '^(%d+)(.*)$')
if string.find(asked, ' ' .. ARGV[2] .. ' ', 1, true) then
  call('HSET', h, 'decliners', string.format('%d ', round + 1))
  return {'rest', now - since, now + math.min(ARGV[7] * 2 ^ math.min(round, 20), ARGV[8])}
end
call('HSET', h, 'decliners', round .. asked .. ARGV[2] .. ' ')
return {'again', now - since, now}

-- The counters of a session. One of a format that this version does not know is left alone by everybody.
local line, format = unpack(redis.call('HMGET', KEYS[1], 'c', 'format'))
if (line or format) and format ~= '@FORMAT@' and not string.find('@KNOWN@', ' ' .. (format or '') .. ' ', 1, true) then
  return redis.error_reply('FORMAT ' .. (format or '1') .. ' ' .. KEYS[1])
end

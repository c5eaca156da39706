-- Nobody else changes a session while it is read page by page: for so many seconds, or until thawed (0).
-- KEYS[1] graflow:{S}:c   ARGV maker seconds now   Reply "frozen" | "thawed", or "busy" maker | "gone"
local call = redis.call
local P = string.sub(KEYS[1], 1, -2)
--KNOWN--
if not line then return {'gone'} end
local now = tonumber(ARGV[3])
if not now then
  local t = call('TIME')
  now = tonumber(t[1]) + tonumber(t[2]) / 1e6
end
local head, flags, rest = string.match(line, '^(' .. string.rep('[^|]*|', 8) .. ')([^|]*)(.*)$')
local maker, seconds, until_ = ARGV[1], tonumber(ARGV[2]), tonumber(call('HGET', P .. 'h', 'frozen') or '0')
if string.find(flags, 'z', 1, true) and until_ > now and call('HGET', P .. 'h', 'freezer') ~= maker then
  return {'busy', call('HGET', P .. 'h', 'freezer')}
end
flags = string.gsub(flags, 'z', '')
if seconds > 0 then
  flags = flags .. 'z'
  call('HSET', P .. 'h', 'frozen', string.format('%.3f', now + seconds), 'freezer', maker)
end
call('HSET', KEYS[1], 'c', head .. flags .. rest)
return {seconds > 0 and 'frozen' or 'thawed'}

-- What a session knows of its cuts. Numbers go up with the transitions that the cuts show.
-- KEYS[1] graflow:{S}:c   ARGV verb …
--   path                     Reply a number that no other path of it has
--   number transition        Reply its number and the cut before it, 0 if a later transition has been numbered
--   turn nonce ms            Reply 1 if the turn to cut is this nonce's, for so long; 0 if it is another's
--   pass nonce               it is over
--   saved steps id path      the cut is there    failed steps   it is not: try again later
-- Reply "gone" for any of them
local call = redis.call
local h = string.sub(KEYS[1], 1, -2) .. 'h'
local cutting = string.sub(KEYS[1], 1, -2) .. 'cutting'
--KNOWN--
if not line then return {'gone'} end
local verb = ARGV[1]
if verb == 'path' then return {call('HINCRBY', h, 'paths', 1)} end
if verb == 'number' then
  if tonumber(call('HGET', h, 'cut_of') or '-1') > tonumber(ARGV[2]) then return {0} end
  call('HSET', h, 'cut_of', ARGV[2])
  return {call('HINCRBY', h, 'cuts', 1), call('HGET', h, 'cut') or ''}
end
if verb == 'turn' or verb == 'pass' then
  local holder = call('GET', cutting)
  if holder and holder ~= ARGV[2] then return {0} end
  if verb == 'turn' then call('SET', cutting, ARGV[2], 'PX', ARGV[3]) else call('DEL', cutting) end
  return {1}
end
local t = call('TIME')
call('HSET', h, 'cut_steps', ARGV[2], 'cut_at', string.format('%d.%06d', t[1], t[2]))
if verb == 'saved' then call('HSET', h, 'cut', ARGV[3], 'cut_path', ARGV[4]) end
return {1}

-- The tables of a session are replaced as a whole by those staged beside them (graflow:{S}:~STAGE:name).
-- KEYS[1] graflow:{S}:c, then lists   ARGV verb line epoch stage seen n (name)*n, then fields and values of h
--   verb  create | rewind | again, if it is as `seen`: MADE|SEQUENCE   Reply "done" epoch, or "exists" | "busy" owner | "expired" | "changed"
local call = redis.call
local P = string.sub(KEYS[1], 1, -2)
--KNOWN--
if ARGV[1] == 'create' and line then return {'exists'} end
local epoch, stage, n = tonumber(ARGV[3]), P .. '~' .. ARGV[4] .. ':', tonumber(ARGV[6])
for i = 7, 6 + n do
  if call('EXISTS', stage .. ARGV[i]) == 0 then return {'expired'} end
end
local t = call('TIME')
local seen = line and (call('HGET', P .. 'h', 'created') or '') .. '|' .. string.match(line, '^[^|]*|([^|]*)')
if ARGV[1] == 'again' and seen ~= ARGV[5] then return {'changed'} end
local now = string.format('%d%03d', t[1], math.floor(tonumber(t[2]) / 1000))
if line then
  local frozen = tonumber(call('HGET', P .. 'h', 'frozen') or '0') * 1000 -- somebody reads it page by page
  if string.find(line, '^' .. string.rep('[^|]*|', 8) .. '[^|]*z') and frozen > tonumber(now) then
    return {'busy', call('HGET', P .. 'h', 'freezer')}
  end
  for _, token in ipairs(call('ZRANGEBYSCORE', P .. 'tok', now, '+inf')) do
    local owner = call('HGET', P .. 'own', token)
    if owner then return {'busy', string.match(owner, '^[^\30]*')} end
  end
end
--LISTED--
if line then
  epoch = math.max(epoch, tonumber(call('HGET', P .. 'h', 'epoch') or '0'))
--CLEARED--
  if ARGV[1] == 'again' then call('UNLINK', P .. 'ledger', P .. 'program') end
  call('PERSIST', P .. 'ledger') -- it may have ended, and goes on
end
for i = 7, 6 + n do
  call('RENAME', stage .. ARGV[i], P .. ARGV[i])
  call('PERSIST', P .. ARGV[i])
end
for i = 7 + n, #ARGV, 2 do call('HSET', P .. 'h', ARGV[i], ARGV[i + 1]) end
call('HSET', P .. 'h', 'epoch', epoch + 1, 'created', made)
local rounds = call('EXISTS', P .. 'r') == 1 and '@ROUNDS@'
call('HSET', KEYS[1], 'c', ARGV[2], 'format', rounds or (call('HEXISTS', P .. 'h', 'run') == 1 and '@AGAIN@' or '@FORMAT@'))
return {'done', epoch + 1}

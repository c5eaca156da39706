-- A submission that its maker will not complete is taken away: nothing of it has run.
-- KEYS[1] graflow:{S}:c, then the lists that it is on   ARGV maker, as the session knows it   Reply what is left: "nothing" | "something"
local call = redis.call
local P = string.sub(KEYS[1], 1, -2)
--KNOWN--
if not line then return 'nothing' end
local maker = call('HGET', P .. 'h', 'maker') or ''
if string.match(line, '^[^|]*') ~= 'init' or maker ~= ARGV[1] then return 'something' end
local function drop(name, kind) -- what somebody else keeps under such a key stays
  if call('TYPE', P .. name).ok == kind then call('DEL', P .. name) end
end
for name in string.gmatch(string.match(line, '^' .. string.rep('[^|]*|', 9) .. '([^|]*)|'), '[^,]+') do
  drop('q:' .. name, 'zset')
end
for name in string.gmatch('c h v n g r t own qt sk pa er dead', '%S+') do drop(name, 'hash') end
for name in string.gmatch('dl tok done', '%S+') do drop(name, 'zset') end
drop('ledger', 'list')
for n = 2, #KEYS do redis.pcall('ZREM', KEYS[n], string.match(KEYS[1], '{(.*)}')) end
return 'nothing'

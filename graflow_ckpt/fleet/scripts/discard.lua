-- A submission that its maker will not complete is taken away: nothing of it has run.
-- KEYS[1] graflow:{S}:c   ARGV maker, as the session knows it   Reply what is left: "nothing" | "something"
local call = redis.call
local P = string.sub(KEYS[1], 1, -2)
local line = call('HGET', KEYS[1], 'c')
if not line then return 'nothing' end
if string.match(line, '^[^|]*') ~= 'init' or call('HGET', P .. 'h', 'maker') ~= ARGV[1] then return 'something' end
for name in string.gmatch(string.match(line, '^' .. string.rep('[^|]*|', 9) .. '([^|]*)|'), '[^,]+') do
  call('DEL', P .. 'q:' .. name)
end
call('DEL', KEYS[1], P .. 'h', P .. 'v', P .. 'n', P .. 'dl')
return 'nothing'

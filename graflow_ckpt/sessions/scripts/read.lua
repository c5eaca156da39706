-- Values with their versions and what was appended to them, as of one moment.
-- KEYS[1] graflow:{S}:c   ARGV name…   Reply per name: false, or {cell version void item…}; or "gone"
-- void: "1" if the task whose result this is was skipped or has failed since.
local call = redis.call
local P = string.sub(KEYS[1], 1, -2)
--KNOWN--
if not line then return {'gone'} end
local flags = string.match(line, '^' .. string.rep('[^|]*|', 8) .. '([^|]*)|')
local lists, marks = string.find(flags, 'a', 1, true), string.find(flags, 'm', 1, true)
local reply = {}
for n, name in ipairs(ARGV) do
  local found = call('HMGET', P .. 'v', '=' .. name, '#' .. name)
  local void = '0'
  if marks then
    local task = string.match(name, '^(.*)%.__result__$')
    if task then
      local err = call('HGET', P .. 'er', task)
      if (err and string.sub(err, 1, 1) == 'f') or call('HEXISTS', P .. 'sk', task) == 1 then void = '1' end
    end
  end
  if found[1] then
    local value = {found[1], found[2], void}
    if lists then
      for _, item in ipairs(call('LRANGE', P .. 'a:' .. name, 0, -1)) do value[#value + 1] = item end
    end
    reply[n] = value
  else
    reply[n] = void == '1' and {'', '', void} or false
  end
end
return reply

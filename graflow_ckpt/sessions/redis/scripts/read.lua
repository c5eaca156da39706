-- Values with their versions and what was appended to them, as of one moment.
-- KEYS[1] graflow:{S}:c   ARGV name…   Reply per name: false, or {cell version void item…}; or "gone"
-- Behind them, if there are any, the bundles that they are in: {id pickle name value…}, a value as above.
-- void: "1" if the task whose result this is was skipped or has failed since.
local call, sub, match = redis.call, string.sub, string.match
local P = sub(KEYS[1], 1, -2)
--KNOWN--
if not line then return {'gone'} end
local flags = match(line, '^' .. string.rep('[^|]*|', 8) .. '([^|]*)|')
local lists, marks = string.find(flags, 'a', 1, true), string.find(flags, 'm', 1, true)

local function value_of(name)
  local found = call('HMGET', P .. 'v', '=' .. name, '#' .. name)
  local void = '0'
  if marks then
    local task = match(name, '^(.*)%.__result__$')
    if task then
      local err = call('HGET', P .. 'er', task)
      if (err and sub(err, 1, 1) == 'f') or call('HEXISTS', P .. 'sk', task) == 1 then void = '1' end
    end
  end
  if not found[1] then return void == '1' and {'', '', void} or false end
  local value = {found[1], found[2], void}
  if lists then
    for _, item in ipairs(call('LRANGE', P .. 'a:' .. name, 0, -1)) do value[#value + 1] = item end
  end
  return value
end

local reply, bundles, seen = {}, {}, {}
for n, name in ipairs(ARGV) do
  reply[n] = value_of(name)
  local id = reply[n] and sub(reply[n][1], 1, 2) == '\193\0' and sub(reply[n][1], 3)
  if id and not seen[id] then
    local row = {id, call('HGET', P .. 'v', '*' .. id)}
    local names, at = call('HGET', P .. 'v', '~' .. id), 1
    while at <= #names do
      local size = match(names, '^%d+', at)
      local from = at + #size + 1
      at = from + tonumber(size)
      row[#row + 1] = sub(names, from, at - 1)
      row[#row + 1] = value_of(row[#row])
    end
    seen[id], bundles[#bundles + 1] = true, row
  end
end
if #bundles > 0 then reply[#ARGV + 1] = bundles end
return reply

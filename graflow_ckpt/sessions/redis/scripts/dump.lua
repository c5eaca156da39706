-- All tables of a session as of one moment.
-- KEYS[1] graflow:{S}:c   ARGV "values" or ""
-- Reply  line, the tables flat, {spec, score, …} per queue, and with values: v flat, {name, item…}…; or "gone"
local call = redis.call
local P = string.sub(KEYS[1], 1, -2)
--KNOWN--
if not line then return {'gone'} end
local reply = {line}
for name in string.gmatch('h dl c dead g done sk pa er n t r', '%S+') do
  if name == 'dl' or name == 'done' then
    reply[#reply + 1] = call('ZRANGE', P .. name, 0, -1, 'WITHSCORES')
  else
    reply[#reply + 1] = call('HGETALL', P .. name)
  end
end
local queues, lists = {}, {}
for name in string.gmatch(string.match(line, '^' .. string.rep('[^|]*|', 9) .. '([^|]*)'), '[^,]+') do
  queues[#queues + 1] = call('ZRANGE', P .. 'q:' .. name, 0, -1, 'WITHSCORES')
end
reply[#reply + 1] = queues
if ARGV[1] == 'values' then
  reply[#reply + 1] = call('HGETALL', P .. 'v')
  for _, field in ipairs(call('HKEYS', P .. 'v')) do
    local name = string.sub(field, 2)
    if string.sub(field, 1, 1) == '=' and call('EXISTS', P .. 'a:' .. name) == 1 then
      local items = call('LRANGE', P .. 'a:' .. name, 0, -1)
      table.insert(items, 1, name)
      lists[#lists + 1] = items
    end
  end
  reply[#reply + 1] = lists
end
return reply

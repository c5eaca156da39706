-- The tables of a session with these counters go.
local queues = string.match(line, '^' .. string.rep('[^|]*|', 9) .. '([^|]*)|') or ''
for name in string.gmatch(queues, '[^,]+') do call('UNLINK', P .. 'q:' .. name) end
for _, name in ipairs(call('HKEYS', P .. 'v')) do
  if string.sub(name, 1, 1) == '=' then call('UNLINK', P .. 'a:' .. string.sub(name, 2)) end
end
for name in string.gmatch('c h dl dead g done sk pa er n r v t tok own qt', '%S+') do call('UNLINK', P .. name) end

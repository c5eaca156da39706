-- Specs: made, put into their queues, promoted when they are due.

local function known(queue)
  if not find(',' .. queues .. ',', ',' .. queue .. ',', 1, true) then
    queues = queues == '' and queue or queues .. ',' .. queue
  end
end

local function delay(due, spec)
  call('ZADD', P .. 'dl', due, spec)
  if not find(flags, 'd', 1, true) then flags = flags .. 'd' end
end

local function fields(spec)
  local f, n = {}, 1
  for _ = 1, 10 do
    local at = find(spec, '\31', n, true)
    f[#f + 1] = sub(spec, n, at - 1)
    n = at + 1
  end
  f[11] = sub(spec, n)
  return f
end

local function push(f, at)
  if f[9] ~= own then elsewhere = true end
  call('ZADD', P .. 'q:' .. f[9], at - tonumber(f[3]) * 8589934592, table.concat(f, '\31'))
end

local function enqueue(task, data, priority, retries, queue, how, due)
  local cycle = 0
  if how == 'direct' then
    cycle = call('HINCRBY', P .. 'n', task, 1) - 1
  else
    cycle = call('HGET', P .. 'n', task) or 0
  end
  local spec = key .. '\31' .. task .. '\31' .. priority .. '\0310\31' .. retries .. '\31' .. how .. '\31' .. cycle
    .. '\31' .. (due or '0') .. '\31' .. queue .. '\0310\31' .. data
  key = key + 1
  if queue ~= queues then known(queue) end
  if due then
    delay(due, spec)
  else
    if queue ~= own then elsewhere = true end
    call('ZADD', P .. 'q:' .. queue, order - priority * 8589934592, spec)
    order = order + 1
  end
end

local function promote()
  local due = call('ZRANGEBYSCORE', P .. 'dl', '-inf', string.format('%.17g', now()), 'WITHSCORES')
  local list = {}
  for n = 1, #due, 2 do
    list[#list + 1] = {tonumber(due[n + 1]), fields(due[n])}
    call('ZREM', P .. 'dl', due[n])
  end
  if call('ZCARD', P .. 'dl') == 0 then flags = string.gsub(flags, 'd', '') end
  table.sort(list, function(a, b)
    if a[1] ~= b[1] then return a[1] < b[1] end
    return tonumber(a[2][1]) < tonumber(b[2][1])
  end)
  for _, item in ipairs(list) do
    item[2][8] = '0'
    push(item[2], order)
    order = order + 1
  end
end

-- the queue whose first spec comes first
local function first(names)
  local best, score = names, nil
  if find(names, ',', 1, true) then
    for name in string.gmatch(names, '[^,]+') do
      local head = call('ZRANGE', P .. 'q:' .. name, 0, 0, 'WITHSCORES')
      if head[1] and (not score or tonumber(head[2]) < score) then best, score = name, tonumber(head[2]) end
    end
  end
  return best
end

-- Who goes on: a token is retired in the breath that saw nothing to hand out, and another one is
-- made where work waits and could be claimed. There is at most one per queue that nobody has begun on.

local tail, ready, expires = '', 0, nil

-- what it was answered last is known for a while: a reply that was lost can still be had
local function void(one)
  local last = call('HGET', C, one)
  if last then call('SET', P .. 'x:' .. one, last, 'EX', 600) end
  call('HDEL', C, one)
end

-- a token that still holds claims stays listed, without a lease, until somebody gives them back
local function retire(one)
  void(one)
  for _, rec in pairs(held > 0 and claims() or {}) do
    if match(rec, '^[^\31]*\31([^\31]*)') == one then return call('ZADD', P .. 'tok', 0, one) end
  end
  call('ZREM', P .. 'tok', one)
  call('HDEL', P .. 'own', one)
end

if #out == 0 and not outside and (find(mode, 'q', 1, true) or (find(mode, 'r', 1, true) and not reaped)) then
  retire(token)
  tail = 'retired'
end
if reaped then retire(reaped) end

if status ~= 'running' and not find(' init paused closing failing ', ' ' .. status .. ' ', 1, true) then
  if #out == 0 and held == 0 then
    if was ~= status or not find(flags, 'e', 1, true) then
      call('HSET', P .. 'h', 'ended', string.format('%.3f', now()))
      flags = string.gsub(flags, 'e', '') .. 'e'
    end
    for _, one in ipairs(call('HKEYS', C)) do
      if find(one, '^e') then void(one) end
    end
    call('DEL', P .. 'tok', P .. 'own', P .. 'qt')
    if not outside then tail = 'retired' end
    expires = call('HGET', P .. 'h', status == 'completed' and 'ttl' or 'kept')
  end
else
  if find(flags, 'e', 1, true) then -- it goes on
    flags = string.gsub(flags, 'e', '')
    expires = 'never'
  end
  -- a slice that goes on sees to its own queue; what it frees may be what another queue waits for
  local all = #out == 0 or find(mode, 's', 1, true)
  if status == 'running' and (all or elsewhere or ends > #out) and find(flags, 'f', 1, true) then
    local left = max_steps == '' or tonumber(max_steps) > steps + held
    for name in string.gmatch(held < (tonumber(cap) or math.huge) and queues or '', '[^,]+') do
      local head = (all or name ~= own) and call('ZRANGE', P .. 'q:' .. name, 0, 0)[1]
      local waits = head and call('HGET', P .. 'qt', name)
      if head and (left or not find(head, DIRECT)) and not (waits and call('ZSCORE', P .. 'tok', waits)) then
        local number = call('HINCRBY', P .. 'h', 'tokens', 1)
        local id = 'e' .. (call('HGET', P .. 'h', 'epoch') or '0') .. 't' .. number .. '_' .. nonce
        call('ZADD', P .. 'tok', math.floor(now() * 1000) + 1000, id)
        call('HSET', P .. 'qt', name, id)
        tail = tail .. '\31' .. id .. '\31' .. name
      end
    end
  end
end
if written then tail = tail .. '\31version\31' .. written end
if find(queues, ',', 1, true) then ready = ready_in(queues) else ready = call('ZCARD', P .. 'q:' .. queues) end
if find(flags, 't', 1, true) then tail = tail .. '\31made\31' .. (call('HGET', P .. 'h', 'makes') or 0) .. ' ' .. call('HLEN', P .. 't') end

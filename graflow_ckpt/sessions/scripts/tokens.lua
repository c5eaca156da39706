-- Who goes on: a token is retired in the breath that saw nothing to hand out, and another one is
-- made where work waits. There is at most one token per queue that nobody has begun on.

local tail, ready, expires = '', 0, nil
local fleet, quits = find(flags, 'f', 1, true), find(mode, 'q', 1, true)
if #out == 0 and (quits or (find(mode, 'r', 1, true) and not reaped)) then
  call('ZREM', P .. 'tok', token)
  call('HDEL', P .. 'own', token)
  tail, quits = 'retired', true
end
if reaped then
  call('ZREM', P .. 'tok', reaped)
  call('HDEL', P .. 'own', reaped)
  call('HDEL', RP, reaped)
  for name in string.gmatch(queues, '[^,]+') do
    if call('HGET', P .. 'qt', name) == reaped then call('HDEL', P .. 'qt', name) end
  end
end

if status == 'completed' or status == 'cancelled' or status == 'failed' or status == 'stopped' or status == 'stalled' then
  if #out == 0 and call('HLEN', CL) == 0 and (was ~= status or not find(flags, 'e', 1, true)) then
    call('DEL', P .. 'tok', P .. 'own', P .. 'qt')
    call('HSET', P .. 'h', 'ended', string.format('%.3f', now()))
    flags = string.gsub(flags, 'e', '') .. 'e'
    expires = call('HGET', P .. 'h', status == 'completed' and 'ttl' or 'kept')
  end
else
  if find(flags, 'e', 1, true) then -- it goes on
    flags = string.gsub(flags, 'e', '')
    expires = 'never'
  end
  if fleet and status == 'running' and (quits or elsewhere or reaped or sub(token, 1, 1) == '!' or find(mode, 's', 1, true)) then
    local most = cap ~= '' and tonumber(cap) or 1000
    for name in string.gmatch(queues, '[^,]+') do
      if call('ZCARD', P .. 'q:' .. name) > 0 and call('HEXISTS', P .. 'qt', name) == 0 and call('ZCARD', P .. 'tok') < most then
        local id = 'e' .. call('HGET', P .. 'h', 'epoch') .. 't' .. call('HINCRBY', P .. 'h', 'tokens', 1)
        call('ZADD', P .. 'tok', math.floor(now() * 1000) + 5000, id)
        call('HSET', P .. 'qt', name, id)
        tail = tail .. '\31' .. id .. '\31' .. name
      end
    end
  end
end
if find(queues, ',', 1, true) then ready = ready_in(queues) else ready = call('ZCARD', P .. 'q:' .. queues) end
if find(flags, 't', 1, true) then tail = tail .. '\31made\31' .. call('HLEN', P .. 't') end

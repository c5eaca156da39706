-- What a steward has to do about a session, and when it has to look again.
-- KEYS[1] graflow:{S}:c   ARGV now (ms, or "" for the server's clock) patience (ms)
-- Reply   "gone" | "over" | "init" created | status next what…
--   next  ms: the earliest time at which something here may be due
--   what  r token         its lease is over, or it holds what it was fenced from
--         p token queue   nobody has begun on it, and somebody should have by now; the next look at it is then
--         n               delayed specs are due, work waits that nobody is asked for, or it should have ended
--         f maker         it is frozen by this one
local call, match, find = redis.call, string.match, string.find
local P = string.sub(KEYS[1], 1, -2)
--KNOWN--
if not line then return {'gone'} end
local status = match(line, '^[^|]*')
local flags, queues = match(line, '^' .. string.rep('[^|]*|', 8) .. '([^|]*)|([^|]*)|')
if status == 'init' then return {'init', call('HGET', P .. 'h', 'created') or '0'} end
if find(flags, 'e', 1, true) then return {'over'} end

local now = tonumber(ARGV[1])
if not now then
  local t = call('TIME')
  now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end
local next, reply = 1e15, {status, ''}
local function due(at)
  if at < next then next = at end
end
local function add(...)
  for _, word in ipairs({...}) do reply[#reply + 1] = word end
end

if find(flags, 'z', 1, true) then
  local frozen = tonumber(call('HGET', P .. 'h', 'frozen') or '0') * 1000
  if frozen > now then
    due(frozen)
    add('f', call('HGET', P .. 'h', 'freezer') or '')
    reply[2] = string.format('%.0f', next)
    return reply
  end
end

local waits, asked, owners = {}, {}, nil -- tokens that wait for a worker by their queue; queues that are seen to
local pairs_ = call('HGETALL', P .. 'qt')
for n = 1, #pairs_, 2 do waits[pairs_[n + 1]] = pairs_[n] end
local tokens = call('ZRANGE', P .. 'tok', 0, -1, 'WITHSCORES')
for n = 1, #tokens, 2 do
  local token, lease = tokens[n], tonumber(tokens[n + 1])
  local owner = call('HGET', P .. 'own', token)
  local queue = owner and match(owner, '\30([^\30]*)$') or waits[token]
  if lease > now then
    due(lease + 1)
    if queue then asked[queue] = true end
  elseif owner or not queue then
    add('r', token)
  else
    add('p', token, queue)
    asked[queue] = true
    call('ZADD', P .. 'tok', now + ARGV[2], token)
    due(now + ARGV[2])
  end
end

if status == 'running' then
  local nudge = find(flags, 'z', 1, true) -- its freeze is over, and nobody has noticed
  local delayed = call('ZRANGE', P .. 'dl', 0, 0, 'WITHSCORES')
  if delayed[2] then
    local at = tonumber(delayed[2]) * 1000
    if at <= now then nudge = true else due(math.ceil(at)) end
  end
  local ready = 0
  for name in string.gmatch(queues, '[^,]+') do
    local n = call('ZCARD', P .. 'q:' .. name)
    ready = ready + n
    if n > 0 and not asked[name] and not asked['*'] then nudge = true end
  end
  if #tokens == 0 and ready == 0 and not delayed[1] then nudge = true end
  if nudge then add('n') end
elseif (status == 'closing' or status == 'failing') and #tokens == 0 then
  add('n')
end
reply[2] = string.format('%.0f', next)
return reply

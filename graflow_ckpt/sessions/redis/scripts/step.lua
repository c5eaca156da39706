-- One transition of a session: replay, check, apply, hand out, and say whether help is wanted.
--
-- KEYS[1]  graflow:{S}:c    all other keys of the session have its tag and are derived from it
-- ARGV     token nonce now mode prev  n (key number)*n  m (name base)*m  op…
--   token  of a slice, or "!id" of somebody outside, who claims nothing
--   nonce  TRY_NUMBER_SENDER, of this request and of no other: the last one is answered again instead of being
--          applied again. It makes what the transition writes different from what another history wrote there
--   prev   the nonce of the sender's transition before this one. If the session does not know it as its last one,
--          a failover or a restore has lost it, or this request is late: nothing of it is applied
--   now    seconds, or "" for the server's clock
--   mode   t few words (turn.lua) · r retire if nothing is handed out · q retire · s help is wanted · B only if nothing was ever enqueued
--          Tx only if token x may be reaped: its lease is over, or ! says that its owner is dead
--          Tx~ms the same, but a lease that is found over goes on for so long first, which is one half ms more: what
--          kept its worker from renewing it may have been the server, which was away or took no writes
--          Ums only until then (server's clock), if it is the first of a sender that is not known
--   base   a version that a value has to have if it is there; =version: that it has to have (=0: not there)
-- Reply    status steps ready tail record…      or "fenced" (the token) | "void" (a claim, or x may not be
--          reaped) | "conflict" name | "stale" name | "lost" (prev, of somebody outside) | "begun" | "frozen" | "gone"
--
-- c   format -> number of the session's format     c -> status|sequence|steps|key|claim|order|max_steps|cap|flags|queues|held|
--     token -> nonce tail keys: its last reply     key -> number token spec: a claim
--     flags: m errors or skips were noted, a lists, b bundles, t tasks made at run time, d delayed specs, r rounds, l ledger, f fleet, z frozen, e it has ended
-- spec    key task priority retries max how cycle not_before queue crashes data        divided by \31
-- r       key -> where its loops are (JSON), \30 and length:NAME… of what they keep
-- q:QUEUE spec, its score order - priority * 2^33
-- v   =NAME -> cell, or \193\0 and the id of a bundle: values that share objects     #NAME -> version: sequence_nonce
--     of the transition that wrote it last     *ID -> one pickle of all     ~ID -> length:NAME… of those still in it

local call, match, find, sub = redis.call, string.match, string.find, string.sub
local C, ARGV = KEYS[1], ARGV
local P = sub(C, 1, -2)
local token, nonce, mode, prev = ARGV[1], ARGV[2], ARGV[4], ARGV[5]
local short = sub(mode, 1, 1) == 't'
local found = call('HMGET', C, 'c', token, ARGV[short and 6 or 7], 'format') -- the counters, its last reply, the claim that it ends if it ends one
local line, before, format = found[1], found[2], found[4]
if (line or format) and format ~= '@FORMAT@' and not find('@KNOWN@', ' ' .. (format or '') .. ' ', 1, true) then return redis.error_reply('FORMAT ' .. (format or '1') .. ' ' .. C) end
if not line then return {'gone'} end
local status, sequence, steps, key, claim, order, max_steps, cap, flags, queues, held =
  match(line, '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|(%d*)')
local V = P .. 'v'
local DIRECT = '^[^\31]*\31[^\31]*\31[^\31]*\31[^\31]*\31[^\31]*\31direct\31' -- a spec with a body

-- a claim as it is handed out: where its loops are stands in the place of the token
local function shown(k, rec)
  local at = find(flags, 'r', 1, true) and call('HGET', P .. 'r', k)
  if not at then return rec end
  return (string.gsub(rec, '^([^\31]*)\31[^\31]*', function(number) return number .. '\31' .. match(at, '^[^\30]*') end))
end

local function ready_in(names)
  local n = 0
  for name in string.gmatch(names, '[^,]+') do n = n + call('ZCARD', P .. 'q:' .. name) end
  return n
end

-- what was answered before is answered again; what follows something else than the last that is known is refused
local outside, new = sub(token, 1, 1) == '!', false
if not before or find(before, prev, 1, true) ~= 1 then
  local past = before or call('GET', P .. 'x:' .. token) -- nobody has to take these away: they expire
  local last, tail, keys = match(past or '', '^([^\30]*)\30([^\30]*)\30(.*)$')
  local request = match(nonce, '_.*') -- without the number of its try
  if last and sub(last, -#request) == request then
    if last ~= nonce then tail = tail .. '\31nonce\31' .. last end
    local reply = {status, tonumber(steps), ready_in(queues), tail}
    for k in string.gmatch(keys, '[^,]+') do
      local rec = call('HGET', C, k)
      if rec and match(rec, '^[^\31]*\31([^\31]*)') == token then reply[#reply + 1] = shown(k, rec) end
    end
    return reply
  end
  if not outside then return {'fenced'} end
  if (last or '') ~= prev then return {'lost'} end
  new = not last
end

--TURN--

local time
local function now()
  if not time then
    if ARGV[3] ~= '' then
      time = tonumber(ARGV[3])
    else
      local t = call('TIME')
      time = tonumber(t[1]) + tonumber(t[2]) / 1e6
    end
  end
  return time
end

if find(flags, 'z', 1, true) then
  if tonumber(call('HGET', P .. 'h', 'frozen') or '0') > now() then return {'frozen'} end
  flags = string.gsub(flags, 'z', '') -- whoever froze it has died
end
if find(mode, 'B', 1, true) and key ~= '1' then return {'begun'} end
local limit = new and match(mode, 'U(%d+)') -- after that what was answered may have been forgotten
if limit and now() * 1000 > tonumber(limit) then return {'lost'} end
local reaped = match(mode, 'T(e[%l%d_]+)') -- not the U of a request that is sent again
if reaped then
  local lease = call('ZSCORE', P .. 'tok', reaped)
  if not lease or (tonumber(lease) > now() * 1000 and not find(mode, '!', 1, true)) then return {'void'} end
  local grace, over, ms = match(mode, '~(%d+)'), tonumber(lease), math.floor(now() * 1000)
  if grace and over > 0 and (over % 1 == 0 or over < ms - 20000) then
    call('ZADD', P .. 'tok', ms + grace + 0.5, reaped)
    return {'void'}
  end
end

-- nothing is applied if a claim is void or a base is stale
local i, recs, ends = 6, {}, tonumber(ARGV[6])
for _ = 1, ends do
  local k = ARGV[i + 1]
  local rec, want = call('HGET', C, k), ARGV[i + 2] .. '\31' .. token .. '\31'
  if not rec or sub(rec, 1, #want) ~= want then return {'void'} end
  recs[k] = sub(rec, #want + 1)
  i = i + 2
end
i = i + 1
for _ = 1, tonumber(ARGV[i]) do
  local version, base = call('HGET', V, '#' .. ARGV[i + 1]), ARGV[i + 2]
  if sub(base, 1, 1) == '=' then
    if (version or '0') ~= sub(base, 2) then return {'stale', ARGV[i + 1]} end
  elseif version and version ~= base then
    return {'conflict', ARGV[i + 1]}
  end
  i = i + 2
end
i = i + 1

sequence, steps, key, claim, order =
  tonumber(sequence) + 1, tonumber(steps), tonumber(key), tonumber(claim), tonumber(order)
held = tonumber(held) or 0
local version = sequence .. '_' .. nonce
local marks, lists = find(flags, 'm', 1, true), find(flags, 'a', 1, true)
local written -- what it is asked for: the version of what it writes
local was, reason, out, keys, elsewhere, deaths = status, nil, {}, {}, false, 0
local own = ARGV[#ARGV - 2] == 'C' and ARGV[#ARGV] or '*' -- the queue that its sender claims from

-- a claim is over
local function drop(k)
  held = held - call('HDEL', C, k)
end

local function mark()
  if not marks then marks, flags = true, flags .. 'm' end
end

-- length:NAME…
local function names_in(text)
  local found, at = {}, 1
  while at <= #text do
    local size = match(text, '^%d+', at)
    local from = at + #size + 1
    at = from + tonumber(size)
    found[#found + 1] = sub(text, from, at - 1)
  end
  return found
end

-- what is written under a name is not in its bundle any more; the last one takes it away
local function leave(name)
  if not find(flags, 'b', 1, true) or call('HSTRLEN', V, '=' .. name) ~= 34 then return end
  local cell = call('HGET', V, '=' .. name)
  if sub(cell, 1, 2) ~= '\193\0' then return end
  local id, left = sub(cell, 3), {}
  for _, other in ipairs(names_in(call('HGET', V, '~' .. id))) do
    if other ~= name then left[#left + 1] = #other .. ':' .. other end
  end
  if #left == 0 then
    call('HDEL', V, '*' .. id, '~' .. id)
  else
    call('HSET', V, '~' .. id, table.concat(left))
  end
end

-- the loops of a spec are over: what they have kept goes with it
local function leave_loops(k)
  local at = find(flags, 'r', 1, true) and call('HGET', P .. 'r', k)
  if not at then return end
  for _, name in ipairs(names_in(match(at, '^[^\30]*\30(.*)$'))) do
    leave(name)
    call('HDEL', V, '=' .. name, '#' .. name)
    if lists then call('DEL', P .. 'a:' .. name) end
  end
  call('HDEL', P .. 'r', k)
  if call('EXISTS', P .. 'r') == 0 then flags = string.gsub(flags, 'r', '') end
end

--SPECS--

--ENDS--

while i <= #ARGV do
  local op = ARGV[i]
  if op == 'E' then -- a body succeeded: key result
    local k = ARGV[i + 1]
    local task = match(recs[k], '^[^\31]*\31([^\31]*)')
    local name = task .. '.__result__'
    steps = steps + 1
    drop(k)
    leave_loops(k)
    call('ZADD', P .. 'done', steps, task)
    leave(name)
    call('HSET', V, '=' .. name, ARGV[i + 2], '#' .. name, version)
    if lists then call('DEL', P .. 'a:' .. name) end
    if marks then
      local less = call('HDEL', P .. 'er', task) + call('HDEL', P .. 'sk', task)
      if less > 0 and call('HLEN', P .. 'er') + call('HLEN', P .. 'sk') == 0 then
        marks, flags = nil, string.gsub(flags, 'm', '')
      end
    end
    ended(recs[k], 'completed')
    i = i + 3
  elseif op == 'C' then -- hand out: limit queue
    local limit, queue, had = tonumber(ARGV[i + 1]), ARGV[i + 2], #out
    if status == 'running' then
      if find(flags, 'd', 1, true) then promote() end
      local left
      if cap ~= '' then limit = math.min(limit, tonumber(cap) - held) end
      if max_steps ~= '' then left = tonumber(max_steps) - steps - held end
      while limit > 0 do
        local from = P .. 'q:' .. (queue == '*' and first(queues) or queue)
        local head = call('ZPOPMIN', from)
        local spec = head[1]
        if not spec then break end
        if left and find(spec, DIRECT) then
          if left <= 0 then
            call('ZADD', from, head[2], spec)
            break
          end
          left = left - 1
        end
        local k = match(spec, '^[^\31]*')
        local rec = claim .. '\31' .. token .. '\31' .. spec
        claim = claim + 1
        call('HSET', C, k, rec)
        held = held + 1
        out[#out + 1], keys[#keys + 1] = shown(k, rec), k
        limit = limit - 1
      end
    end
    if #out == had and held == 0 then settle() end
    i = i + 3
  elseif op == 'N' then -- a new spec: task data priority retries queue how
    enqueue(ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5], ARGV[i + 6])
    i = i + 7
  elseif op == 'R' then -- an in-edge is through: task ok size need priority retries queue how
    local task = ARGV[i + 1]
    local g = call('HGET', P .. 'g', task)
    local size, need, arrived, oks, fired, toward = ARGV[i + 3], ARGV[i + 4], 0, 0, '0', ''
    if g then size, need, arrived, oks, fired, toward = match(g, '^(%S+) (%S+) (%S+) (%S+) ([01])(.*)$') end
    size, need, arrived, oks = tonumber(size), tonumber(need), arrived + 1, oks + ARGV[i + 2]
    local full, how = arrived >= size, ARGV[i + 8]
    if fired == '0' and (full or (need > 0 and need <= oks)) then
      fired = '1'
      if toward ~= '' and oks < math.max(1, need) then how = 'jump' .. toward
      elseif need == 0 and oks == 0 then how = 'skip' elseif oks < need then how = 'lost' end
      enqueue(task, '', ARGV[i + 5], ARGV[i + 6], ARGV[i + 7], how)
    end
    if full then
      call('HDEL', P .. 'g', task)
    else
      call('HSET', P .. 'g', task, size .. ' ' .. need .. ' ' .. arrived .. ' ' .. oks .. ' ' .. fired .. toward)
    end
    i = i + 9
  elseif op == 'B' then -- values of one pickle, which are put below: id pickle n name…
    local names, n = {}, tonumber(ARGV[i + 3])
    for at = i + 4, i + 3 + n do names[#names + 1] = #ARGV[at] .. ':' .. ARGV[at] end
    call('HSET', V, '*' .. ARGV[i + 1], ARGV[i + 2], '~' .. ARGV[i + 1], table.concat(names))
    if not find(flags, 'b', 1, true) then flags = flags .. 'b' end
    i = i + 4 + n
  elseif op == 'P' then -- put: name cell
    leave(ARGV[i + 1])
    call('HSET', V, '=' .. ARGV[i + 1], ARGV[i + 2], '#' .. ARGV[i + 1], version)
    if lists then call('DEL', P .. 'a:' .. ARGV[i + 1]) end
    i = i + 3
  elseif op == 'A' then -- append: name cell
    local name = ARGV[i + 1]
    if not lists then lists, flags = true, flags .. 'a' end
    call('HSETNX', V, '=' .. name, '\144') -- the plain empty list
    call('HSET', V, '#' .. name, version)
    call('RPUSH', P .. 'a:' .. name, ARGV[i + 2])
    i = i + 3
  elseif op == 'e' then -- another end: key how due error
    local k, how, err = ARGV[i + 1], ARGV[i + 2], ARGV[i + 4]
    local f = fields(recs[k])
    local task = f[2]
    drop(k)
    if how == 'retry' then
      f[4], f[8] = f[4] + 1, '0'
      mark()
      call('HSET', P .. 'er', task, 'r' .. err)
      if tonumber(ARGV[i + 3]) > now() then
        f[8] = ARGV[i + 3]
        delay(f[8], table.concat(f, '\31'))
      else
        push(f, order)
        order = order + 1
      end
    elseif how == 'failed' or how == 'lost' then
      mark()
      call('HSET', P .. 'er', task, 'f' .. err)
      call('HDEL', P .. 'pa', task)
      if how == 'failed' then dead(k, err, table.concat(f, '\31')) else leave_loops(k) end
    else
      leave_loops(k)
      if how == 'skipped' then
        mark()
        call('HSET', P .. 'sk', task, steps)
      elseif how == 'passed' then
        call('HSET', P .. 'pa', task, steps)
        call('HDEL', P .. 'sk', task)
      end
      if f[4] ~= '0' then give_up(task) end
    end
    ended(recs[k], how)
    i = i + 5
  elseif op == 'L' then -- a new spec for later: task data priority retries queue how due
    enqueue(ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5], ARGV[i + 6], ARGV[i + 7])
    i = i + 8
  elseif op == 'X' then -- the join waits for more: task more size need
    local g = call('HGET', P .. 'g', ARGV[i + 1])
    local size, rest = ARGV[i + 3], ' ' .. ARGV[i + 4] .. ' 0 0 0'
    if g then size, rest = match(g, '^(%S+)(.*)$') end
    call('HSET', P .. 'g', ARGV[i + 1], (size + ARGV[i + 2]) .. rest)
    i = i + 5
  elseif op == 'J' then -- a branch jumps past the join: task target size need
    local g = call('HGET', P .. 'g', ARGV[i + 1]) or (ARGV[i + 3] .. ' ' .. ARGV[i + 4] .. ' 0 0 0')
    local to = '\30' .. ARGV[i + 2]
    if not find(g .. '\30', to .. '\30', 1, true) then g = g .. to end
    call('HSET', P .. 'g', ARGV[i + 1], g)
    i = i + 5
  elseif op == 'S' then -- cut off: task
    mark()
    call('HSET', P .. 'sk', ARGV[i + 1], steps)
    i = i + 2
  elseif op == 'T' then -- status reason
    local to = ARGV[i + 1]
    local changes = status == 'running' or status == 'closing' or status == 'paused'
      or (to == 'cancelled' and status ~= 'completed')
    if to == 'running' then -- again after a pause, or all of it has been written
      changes = status == 'paused' or status == 'init'
    elseif to == 'paused' then
      changes = status == 'running'
    end
    if changes then status, reason = to, ARGV[i + 2] end
    i = i + 3
  elseif op == 'M' then -- a task made at run time: name record
    call('HSET', P .. 't', ARGV[i + 1], ARGV[i + 2])
    call('HSET', P .. 'h', 'm:' .. call('HINCRBY', P .. 'h', 'makes', 1), nonce .. ' ' .. ARGV[i + 1])
    if not find(flags, 't', 1, true) then flags = flags .. 't' end
    i = i + 3
  elseif op == 'U' then -- a round of its loops is over: key where n name…
    local k, n, had = ARGV[i + 1], tonumber(ARGV[i + 3]), {}
    local names = match(call('HGET', P .. 'r', ARGV[i + 1]) or '\30', '^[^\30]*\30(.*)$')
    for _, name in ipairs(n > 0 and names_in(names) or {}) do had[name] = true end
    for at = i + 4, i + 3 + n do
      if not had[ARGV[at]] then names = names .. #ARGV[at] .. ':' .. ARGV[at] end
    end
    call('HSET', P .. 'r', k, ARGV[i + 2] .. '\30' .. names)
    if not find(flags, 'r', 1, true) then
      flags = flags .. 'r'
      call('HSET', C, 'format', '@ROUNDS@')
    end
    local f = fields(recs[k])
    if f[4] ~= '0' or f[10] ~= '0' then -- it has come further: what has failed before does not count
      if f[4] ~= '0' then call('HDEL', P .. 'er', f[2]) end
      f[4], f[10] = '0', '0'
      recs[k] = table.concat(f, '\31')
      call('HSET', C, k, match(call('HGET', C, k), '^[^\31]*\31[^\31]*\31') .. recs[k])
    end
    written = version
    i = i + 4 + n
  elseif op == 'G' then -- random state
    call('HSET', P .. 'h', 'rng', ARGV[i + 1])
    i = i + 2
  elseif op == 'K' then -- never more claims than: limit
    cap = ARGV[i + 1]
    i = i + 2
--REPAIRS--
  else
    return redis.error_reply('graflow: unknown op ' .. tostring(op))
  end
end

--TOKENS--

line = table.concat({status, sequence, steps, key, claim, order, max_steps, cap, flags, queues, held, ''}, '|')
if reason then call('HSET', P .. 'h', 'reason', reason) end
local record = nonce .. '\30' .. tail .. '\30' .. table.concat(keys, ',')
if outside or sub(tail, 1, 7) == 'retired' then
  call('HSET', C, 'c', line)
  call('SET', P .. 'x:' .. token, record, 'EX', 600)
else
  call('HSET', C, 'c', line, token, record)
end
redis.pcall('PUBLISH', P .. 'ev', sequence) -- a bell, no more: the user may have no channels, and all is written
if expires and expires ~= '' then
  local function set(name)
    if expires == 'never' then redis.pcall('PERSIST', P .. name) else redis.pcall('EXPIRE', P .. name, expires) end
  end
  for name in string.gmatch('c h dl dead g done sk pa er n r v t ledger', '%S+') do set(name) end
  for name in string.gmatch(queues, '[^,]+') do set('q:' .. name) end
  if lists then
    for _, name in ipairs(call('HKEYS', V)) do
      if sub(name, 1, 1) == '=' then set('a:' .. sub(name, 2)) end
    end
  end
end
local reply = {status, steps, ready, tail}
for n = 1, #out do reply[n + 4] = out[n] end
return reply

-- What becomes of specs that do not run any more, and of the session when none does.

local function claims()
  local found, all = {}, call('HGETALL', C)
  for n = 1, #all, 2 do
    if find(all[n], '^%d') then found[all[n]] = all[n + 1] end
  end
  return found
end

local function waiting()
  local names, all = {}, call('HGETALL', P .. 'g')
  for n = 1, #all, 2 do
    if match(all[n + 1], '^%S+ %S+ %S+ %S+ 0') then names[#names + 1] = all[n] end
  end
  table.sort(names)
  return names
end

local function empty()
  return ready_in(queues) == 0 and call('ZCARD', P .. 'dl') == 0 and call('HLEN', P .. 'dead') == 0
end

-- set aside for a resume; the error may hold any byte
local function dead(k, err, spec)
  deaths = deaths + 1
  call('HSET', P .. 'dead', k, string.format('%d%04d\30%d\30', sequence, deaths, #err) .. err .. spec)
end

local function of_dead(rec)
  local size, from = match(rec, '^%d+\30(%d+)\30()')
  return sub(rec, from + tonumber(size))
end

-- the claim that is to be given back, unless somebody else has it by now
local function held_by_dead(k)
  local rec = call('HGET', C, k)
  local holder = rec and match(rec, '^[^\31]*\31([^\31]*)')
  return (holder == (reaped or token) or (outside and not reaped)) and rec
end

-- what was to be retried is not: it has failed
local function give_up(task)
  local err = marks and call('HGET', P .. 'er', task)
  if err and sub(err, 1, 1) == 'r' then call('HSET', P .. 'er', task, 'f' .. sub(err, 2)) end
end

local function unschedule()
  if marks then
    for _, task in ipairs(call('HKEYS', P .. 'er')) do give_up(task) end
  end
  for name in string.gmatch(queues, '[^,]+') do call('DEL', P .. 'q:' .. name) end
  call('DEL', P .. 'dl', P .. 'g')
  for _, k in ipairs(find(flags, 'r', 1, true) and call('HKEYS', P .. 'r') or {}) do
    if call('HEXISTS', C, k) + call('HEXISTS', P .. 'dead', k) == 0 then leave_loops(k) end
  end
end

-- nothing runs: is this an end?
local function settle()
  if status == 'closing' then
    unschedule()
    status = 'completed'
  elseif status == 'failing' then
    status = 'failed'
  elseif status == 'running' then
    if max_steps ~= '' and steps >= tonumber(max_steps) and not empty() then
      status, reason = 'stopped', 'max_steps=' .. max_steps .. ' reached'
    elseif empty() then
      local names = waiting()
      status = #names > 0 and 'stalled' or 'completed'
      reason = #names > 0 and 'still waiting: ' .. table.concat(names, ', ') or ''
    end
  end
end

local function ended(rec, how)
  if find(flags, 'l', 1, true) then
    local f = fields(rec)
    call('RPUSH', P .. 'ledger', table.concat({sequence, steps, f[2], f[7], f[1], how, token}, '\31'))
  end
end

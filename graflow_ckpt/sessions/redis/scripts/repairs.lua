  elseif op == 'o' and status == 'cancelled' then -- for good, also where the cancel was quicker than its caller
    i = i + 3
  elseif op == 'o' then -- a new owner goes on: epoch max_steps
    call('HSET', P .. 'h', 'epoch', ARGV[i + 1])
    max_steps = ARGV[i + 2]
    local queued = ready_in(queues) + call('ZCARD', P .. 'dl')
    local specs = queued + held + call('HLEN', P .. 'dead')
    if status == 'closing' and specs > 0 then
      if held == 0 then settle() end
    else
      if status ~= 'completed' or queued > 0 then status, reason = 'running', '' end
      local found, all = {}, call('HGETALL', P .. 'dead')
      for n = 1, #all, 2 do
        found[#found + 1] = {tonumber(match(all[n + 1], '^%d+')), fields(of_dead(all[n + 1]))}
      end
      table.sort(found, function(a, b) return a[1] < b[1] end)
      for _, item in ipairs(found) do
        item[2][4], item[2][8], item[2][10] = '0', '0', '0'
        if item[2][6] == 'lost' then item[2][6] = 'again' elseif item[2][6] == 'failed' then item[2][6] = 'direct' end
        push(item[2], order)
        order = order + 1
      end
      call('DEL', P .. 'dead')
    end
    i = i + 3
  elseif op == 'r' or op == 'd' then -- the claim of a dead owner is void (d: and in doubt): key crashes
    local rec = held_by_dead(ARGV[i + 1])
    if rec then
      local f = fields(match(rec, '^[^\31]*\31[^\31]*\31(.*)$'))
      drop(ARGV[i + 1])
      f[10] = ARGV[i + 2]
      if op == 'd' then f[6] = 'doubt' end
      push(f, -order) -- before all others of its priority
      order = order + 1
    end
    i = i + 3
  elseif op == 'q' then -- it has taken its process down too often: key error
    local rec = held_by_dead(ARGV[i + 1])
    if rec then
      local spec = match(rec, '^[^\31]*\31[^\31]*\31(.*)$')
      mark()
      drop(ARGV[i + 1])
      call('HSET', P .. 'er', fields(spec)[2], 'f' .. ARGV[i + 2])
      dead(ARGV[i + 1], ARGV[i + 2], spec)
      if status == 'running' then status, reason = 'paused', ARGV[i + 2] end
    end
    i = i + 3
  elseif op == 'w' then -- what was in doubt or set aside is scheduled as that: key how
    local k, spec = ARGV[i + 1], nil
    local rec, aside = held_by_dead(k), call('HGET', P .. 'dead', k)
    if rec then
      spec = match(rec, '^[^\31]*\31[^\31]*\31(.*)$')
      drop(k)
    elseif aside then
      spec = of_dead(aside)
      call('HDEL', P .. 'dead', k)
    end
    if spec then
      local f = fields(spec)
      f[6] = ARGV[i + 2]
      call('HDEL', P .. 'er', f[2])
      push(f, 0 - order)
      order = order + 1
    end
    i = i + 3
  elseif op == 'a' then -- completed tasks run again: n task…
    local gone = {}
    for n = 1, tonumber(ARGV[i + 1]) do
      local task = ARGV[i + 1 + n]
      local name = task .. '.__result__'
      gone[task] = true
      give_up(task)
      call('ZREM', P .. 'done', task)
      call('HDEL', P .. 'pa', task)
      call('HDEL', P .. 'sk', task)
      call('HDEL', P .. 'g', task)
      leave(name)
      call('HDEL', V, '=' .. name, '#' .. name)
      call('DEL', P .. 'a:' .. name)
    end
    local function thin(zset)
      for _, spec in ipairs(call('ZRANGE', zset, 0, -1)) do
        if gone[fields(spec)[2]] then
          call('ZREM', zset, spec)
          leave_loops(match(spec, '^[^\31]*'))
        end
      end
    end
    for name in string.gmatch(queues, '[^,]+') do thin(P .. 'q:' .. name) end
    thin(P .. 'dl')
    for k, rec in pairs(claims()) do
      if gone[fields(match(rec, '^[^\31]*\31[^\31]*\31(.*)$'))[2]] then
        drop(k)
        leave_loops(k)
      end
    end
    local all = call('HGETALL', P .. 'dead')
    for n = 1, #all, 2 do
      if gone[fields(of_dead(all[n + 1]))[2]] then
        call('HDEL', P .. 'dead', all[n])
        leave_loops(all[n])
      end
    end
    i = i + 2 + tonumber(ARGV[i + 1])
  elseif op == 'b' then -- so many arrivals come too late: task count
    call('HSET', P .. 'g', ARGV[i + 1], ARGV[i + 2] .. ' 0 0 0 1')
    i = i + 3
  elseif op == 'c' then -- nothing is scheduled any more
    status, reason = 'running', ''
    for k in pairs(claims()) do drop(k) end
    call('DEL', P .. 'dead')
    unschedule()
    i = i + 1

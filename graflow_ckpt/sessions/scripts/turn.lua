-- The everyday transition, without what it has no need of: one body succeeded, it may enqueue one successor,
-- and the next spec is handed out. Whatever is unusual goes on to the general case below.
if ARGV[9] == 'E' and ARGV[5] == '1' and ARGV[8] == '0' and status == 'running' and not outside
  and (flags == 'f' or flags == '') and (mode == 'r' or mode == '') and cap == '' and max_steps == '' then
  local new = ARGV[12] == 'N'
  local at = new and 19 or 12
  if #ARGV == at + 2 and ARGV[at] == 'C' and ARGV[at + 1] == '1' and ARGV[at + 2] == queues
    and (not new or (ARGV[17] == queues and ARGV[18] == 'direct')) then
    local k, own, ready = ARGV[6], ARGV[7] .. '\31' .. token .. '\31', P .. 'q:' .. queues
    local rec = found[3]
    if rec and sub(rec, 1, #own) == own then
      if new then
        local task, priority = ARGV[13], ARGV[15]
        local cycle = call('HINCRBY', P .. 'n', task, 1) - 1
        call('ZADD', ready, order - priority * 8589934592, key .. '\31' .. task .. '\31' .. priority .. '\0310\31'
          .. ARGV[16] .. '\31direct\31' .. cycle .. '\0310\31' .. queues .. '\0310\31' .. ARGV[14])
        key, order = key + 1, order + 1
      end
      local spec = call('ZPOPMIN', ready)[1]
      if spec then
        local task, took = match(rec, '^[^\31]*\31([^\31]*)', #own + 1), claim .. '\31' .. token .. '\31' .. spec
        local name, k2 = task .. '.__result__', match(spec, '^[^\31]*')
        sequence, steps = sequence + 1, steps + 1
        call('HDEL', C, k)
        call('ZADD', P .. 'done', steps, task)
        call('HSET', V, '=' .. name, ARGV[11], '#' .. name, sequence)
        call('HSET', C, 'c', 'running|' .. sequence .. '|' .. steps .. '|' .. key .. '|' .. claim + 1 .. '|' .. order
          .. '|||' .. flags .. '|' .. queues .. '|' .. held .. '|', token, seq .. '\30\30' .. k2, k2, took)
        return {status, steps, -1, '', took} -- whether more is ready is not looked at
      end
    end
  end
end

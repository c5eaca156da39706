-- The everyday transition, in few words: one body succeeded, it may enqueue one successor, and one spec is
-- handed out. What is not as usual goes on below, in full.
--
-- ARGV     token nonce now t(mode) prev key number queue cell [task priority retries queue]
if short then
  local k, queue, task = ARGV[6], ARGV[8], ARGV[10]
  if status == 'running' and not outside and (flags == 'f' or flags == '') and cap == '' and max_steps == ''
    and (mode == 'tr' or mode == 't') and (queue == queues or (queue == '*' and not find(queues, ',', 1, true)))
    and (not task or ARGV[13] == queues) then
    local rec, own, ready = found[3], ARGV[7] .. '\31' .. token .. '\31', P .. 'q:' .. queues
    if rec and sub(rec, 1, #own) == own then
      local count = string.format -- a number in .. takes three times as long
      if task then
        local priority = ARGV[11]
        local cycle = count('%d', call('HINCRBY', P .. 'n', task, 1) - 1)
        call('ZADD', ready, order - priority * 8589934592, key .. '\31' .. task .. '\31' .. priority .. '\0310\31'
          .. ARGV[12] .. '\31direct\31' .. cycle .. '\0310\31' .. queues .. '\0310\31')
        key, order = count('%d', key + 1), count('%d', order + 1)
      end
      local spec = call('ZPOPMIN', ready)[1]
      if spec then
        local ended, took = match(rec, '^[^\31]*\31([^\31]*)', #own + 1), claim .. '\31' .. token .. '\31' .. spec
        local name, k2 = ended .. '.__result__', match(spec, '^[^\31]*')
        sequence, claim, steps = count('%d', sequence + 1), count('%d', claim + 1), count('%d', steps + 1)
        call('HDEL', C, k)
        call('ZADD', P .. 'done', steps, ended)
        call('HSET', V, '=' .. name, ARGV[9], '#' .. name, sequence .. '_' .. nonce)
        call('HSET', C, 'c', 'running|' .. sequence .. '|' .. steps .. '|' .. key .. '|' .. claim .. '|' .. order
          .. '|||' .. flags .. '|' .. queues .. '|' .. held .. '|', token, nonce .. '\30\30' .. k2, k2, took)
        return {status, tonumber(steps), -1, '', took} -- whether more is ready is not looked at
      end
    end
  end
  local full = {token, nonce, ARGV[3], sub(mode, 2), prev, 1, k, ARGV[7], 0, 'E', k, ARGV[9]}
  for _, word in ipairs(task and {'N', task, '', ARGV[11], ARGV[12], ARGV[13], 'direct'} or {}) do
    full[#full + 1] = word
  end
  for _, word in ipairs({'C', 1, queue}) do full[#full + 1] = word end
  ARGV, mode = full, full[4]
end

-- Tell the keys of named checkpoints who owns a session: its epoch only grows.
-- KEYS  epochs: hash session -> epoch; fence: hash {epoch, nonce}
-- ARGV  session, epoch, nonce of the claim
-- gives 0; or the epoch that another claim has here already. It was given out, and the session's keys have
-- forgotten it: a replica took over that had not heard of it.
local known, mine = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0'), tonumber(ARGV[2])
if known > mine or (known == mine and redis.call('HGET', KEYS[2], 'nonce') ~= ARGV[3]) then
    return known
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[2], 'epoch', ARGV[2], 'nonce', ARGV[3])
return 0

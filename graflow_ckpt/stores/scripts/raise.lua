-- Tell the slot of named checkpoints which epoch a session has: it only grows.
-- KEYS  epochs: hash session -> epoch
-- ARGV  session, epoch
local known = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0')
if known < tonumber(ARGV[2]) then
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
return 1

-- Announce chunks that are to come, so that a new owner can clear them away.
-- KEYS  fence: hash; staging: hash nonce -> {session, epoch, at}
-- ARGV  field of the fence or nothing, epoch, nonce, session
-- gives 1, or 0 if the session is not ours
if ARGV[1] ~= '' and redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
    return 0
end
local at = redis.call('TIME')[1]
redis.call('HSET', KEYS[2], ARGV[3], cjson.encode({session = ARGV[4], epoch = ARGV[2], at = at}))
return 1

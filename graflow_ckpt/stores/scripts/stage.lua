-- Announce chunks that are to come, so that a new owner can clear them away.
-- KEYS  fence: hash {epoch, nonce}; staging: hash nonce -> {session, epoch, at}
-- ARGV  epoch and claim, or nothing twice; nonce, session
-- gives 1, or 0 if the session is not ours
if ARGV[1] ~= '' then
    local held = redis.call('HMGET', KEYS[1], 'epoch', 'nonce')
    if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then
        return 0
    end
end
local at = redis.call('TIME')[1]
redis.call('HSET', KEYS[2], ARGV[3], cjson.encode({session = ARGV[4], epoch = ARGV[1], at = at}))
return 1

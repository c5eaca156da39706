-- Let a session go. The epoch stays: it is never given out again.
-- KEYS  lease: hash {epoch, owner, until, nonce}
-- ARGV  epoch, nonce
local held = redis.call('HMGET', KEYS[1], 'epoch', 'nonce')
if held[1] == ARGV[1] and held[2] == ARGV[2] then
    redis.call('HDEL', KEYS[1], 'owner', 'until', 'nonce')
end
return 1

-- Let a session go. The epoch stays: it is never given out again.
-- KEYS  lease: hash {epoch, owner, until, nonce}
-- ARGV  epoch
if redis.call('HGET', KEYS[1], 'epoch') == ARGV[1] then
    redis.call('HDEL', KEYS[1], 'owner', 'until', 'nonce')
end
return 1

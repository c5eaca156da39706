-- Write down that this epoch goes on from an earlier sequence.
-- KEYS  lease: hash {epoch, nonce}; lines: list of epoch:sequence
-- ARGV  epoch, nonce, line
-- gives 1, or 0 if the session is not ours
local held = redis.call('HMGET', KEYS[1], 'epoch', 'nonce')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then
    return 0
end
if redis.call('LINDEX', KEYS[2], -1) ~= ARGV[3] then
    redis.call('RPUSH', KEYS[2], ARGV[3])
end
return 1

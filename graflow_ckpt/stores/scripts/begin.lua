-- Begin a segment of the journal.
-- KEYS  lease: hash {epoch, nonce}; segments: set of epoch:after; segment: list of frames
-- ARGV  epoch, nonce, member
-- gives 1; 0 if the session is not ours; -1 if the segment has frames already
local held = redis.call('HMGET', KEYS[1], 'epoch', 'nonce')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then
    return 0
end
if redis.call('LLEN', KEYS[3]) > 0 then
    return -1
end
redis.call('SADD', KEYS[2], ARGV[3])
return 1

-- Append a frame to a segment of the journal, once.
-- KEYS  lease: hash {epoch, nonce}; segment: list of frames
-- ARGV  epoch, nonce, frames before it, frame
-- gives 1; 0 if the session is not ours; -1 if there are other frames than the caller's
local held = redis.call('HMGET', KEYS[1], 'epoch', 'nonce')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then
    return 0
end
local count = redis.call('LLEN', KEYS[2])
if count == tonumber(ARGV[3]) then
    redis.call('RPUSH', KEYS[2], ARGV[4])
    return 1
end
if count == ARGV[3] + 1 and redis.call('LINDEX', KEYS[2], -1) == ARGV[4] then
    return 1 -- the reply to this very append was lost
end
return -1

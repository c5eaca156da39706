-- Append a frame to a segment of the journal, once.
-- KEYS  lease: hash {epoch}; segment: list of frames
-- ARGV  epoch, frames before it, frame
-- gives 1; 0 if the session is not ours; -1 if there are other frames than the caller's
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
    return 0
end
local count = redis.call('LLEN', KEYS[2])
if count == tonumber(ARGV[2]) then
    redis.call('RPUSH', KEYS[2], ARGV[3])
    return 1
end
if count == ARGV[2] + 1 and redis.call('LINDEX', KEYS[2], -1) == ARGV[3] then
    return 1 -- the reply to this very append was lost
end
return -1

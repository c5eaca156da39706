-- Begin a segment of the journal.
-- KEYS  lease: hash {epoch}; segments: set of epoch:after; segment: list of frames
-- ARGV  epoch, member
-- gives 1; 0 if the session is not ours; -1 if the segment has frames already
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
    return 0
end
if redis.call('LLEN', KEYS[3]) > 0 then
    return -1
end
redis.call('SADD', KEYS[2], ARGV[2])
return 1

-- Write down that this epoch goes on from an earlier sequence.
-- KEYS  lease: hash {epoch}; lines: list of epoch:sequence
-- ARGV  epoch, line
-- gives 1, or 0 if the session is not ours
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
    return 0
end
if redis.call('LINDEX', KEYS[2], -1) ~= ARGV[2] then
    redis.call('RPUSH', KEYS[2], ARGV[2])
end
return 1

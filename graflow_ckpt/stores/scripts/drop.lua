-- Drop segments of the journal.
-- KEYS  segments: set of epoch:after; then each segment: list of frames
-- ARGV  their members
for n = 2, #KEYS do
    redis.call('UNLINK', KEYS[n])
    redis.call('SREM', KEYS[1], ARGV[n - 1])
end
return #KEYS - 1

-- Is the session still ours? And ours for longer, if milliseconds are given.
-- KEYS  lease: hash {epoch, owner, until, nonce}
-- ARGV  epoch, nonce, milliseconds or nothing
-- gives {1} or {0, epoch or nothing, owner or nothing}
local held = redis.call('HMGET', KEYS[1], 'epoch', 'owner', 'nonce')
if held[1] ~= ARGV[1] or held[3] ~= ARGV[2] then
    return {0, held[1] or '', held[2] or ''}
end
if ARGV[3] ~= '' then
    local time = redis.call('TIME')
    redis.call('HSET', KEYS[1], 'until', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[3])
end
return {1}

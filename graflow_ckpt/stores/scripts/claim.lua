-- Become the owner of a session, or learn who is.
-- KEYS  lease: hash {epoch, owner, until, nonce}
-- ARGV  nonce, owner, milliseconds, how (ask | take | a dead owner's epoch), floor
-- gives {1, epoch, former owner} or {0, epoch, owner, until, now}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = redis.call('HMGET', KEYS[1], 'epoch', 'owner', 'until', 'nonce')
local epoch = tonumber(held[1] or '0')
if held[4] == ARGV[1] then -- the reply to this very claim was lost
    return {1, epoch, ''}
end
local alive = held[2] and tonumber(held[3] or '0') > now
if alive and ARGV[4] ~= 'take' and ARGV[4] ~= tostring(epoch) then
    return {0, epoch, held[2], held[3], tostring(now)}
end
epoch = math.max(epoch, tonumber(ARGV[5])) + 1
redis.call('HSET', KEYS[1], 'epoch', epoch, 'owner', ARGV[2], 'until', now + ARGV[3], 'nonce', ARGV[1])
return {1, epoch, held[2] or ''}

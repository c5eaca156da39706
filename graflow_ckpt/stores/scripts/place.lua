-- Announce the chunks of a content, so that they are found if its save dies. No save finds it before `keep`.
-- KEYS  staging: hash nonce -> {session, epoch, at}; contents: hash name -> nonce, size, count
-- ARGV  save, nonce, size, number of chunks
-- gives 1, or 0 if the save was cleared away
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    return 0
end
local root = KEYS[2] .. ':'
redis.call('SADD', root .. 'by:' .. ARGV[2], ARGV[1])
redis.call('HSET', root .. 'of:' .. ARGV[1], ARGV[2], ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. ARGV[4])
return 1

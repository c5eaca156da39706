-- Clear away what dead writers have staged: those of a session under an earlier epoch, and whoever has not
-- committed within the life of a chunk. Chunks are written in order, so the first that is not there is the
-- end; a writer that is alive after all clears away what it writes after this.
-- KEYS  staging: hash nonce -> {session, epoch, at}; contents: hash name -> nonce, size, count;
--       over: set of holders
-- ARGV  prefix of chunks, seconds that a chunk lives, session, epoch, names of parts
-- gives how many there were, and 1 if there are contents to let go of
local now = tonumber(redis.call('TIME')[1])
local gone = 0
local staged = redis.call('HGETALL', KEYS[1])
for at = 1, #staged, 2 do
    local nonce, of = staged[at], cjson.decode(staged[at + 1])
    local dead = of.session == ARGV[3] and tonumber(of.epoch) < tonumber(ARGV[4])
    if dead or of.at + ARGV[2] < now then
        for name = 5, #ARGV do
            local n = 0
            while redis.call('UNLINK', ARGV[1] .. nonce .. ':' .. ARGV[name] .. ':' .. n) == 1 do
                n = n + 1
            end
        end
        redis.call('HDEL', KEYS[1], nonce)
        if redis.call('EXISTS', KEYS[2] .. ':of:' .. nonce) == 1 then -- it was a save of contents
            redis.call('SADD', KEYS[3], nonce)
        end
        gone = gone + 1
    end
end
return {gone, redis.call('EXISTS', KEYS[3])}

-- A part of a table is put beside those of a session (graflow:{S}:~STAGE:name), where it expires by itself.
-- KEYS[1] graflow:{S}:c   ARGV command name seconds argument…
local key = string.sub(KEYS[1], 1, -2) .. '~' .. ARGV[2]
redis.call(ARGV[1], key, unpack(ARGV, 4))
return redis.call('EXPIRE', key, ARGV[3])

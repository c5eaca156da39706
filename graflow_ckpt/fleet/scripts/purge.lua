-- All that is kept of a session goes at once: one of the same name is there before or after that.
-- KEYS[1] graflow:{S}:c, then the lists that it is on   ARGV its keys, as far as they have been found
local call = redis.call
local P = string.sub(KEYS[1], 1, -2)
--KNOWN--
if call('TYPE', P .. 'v').ok ~= 'hash' then call('UNLINK', P .. 'v') end
if line then -- what has come since then, too
--CLEARED--
end
for n = 1, #ARGV do call('UNLINK', ARGV[n]) end
for n = 2, #KEYS do redis.pcall('ZREM', KEYS[n], string.match(KEYS[1], '{(.*)}')) end

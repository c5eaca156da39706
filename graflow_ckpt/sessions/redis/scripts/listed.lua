-- When the session is made, by the server's clock, and the lists that it is on from then on, if any are given:
-- KEYS[2] by that moment (ms), KEYS[3] by when it is looked at next, which is at once.
local t = redis.call('TIME')
local made = string.format('%d.%06d', t[1], t[2])
for n = 2, #KEYS do
  redis.call('ZADD', KEYS[n], n == 2 and math.floor(made * 1000) or 0, string.match(KEYS[1], '{(.*)}'))
end

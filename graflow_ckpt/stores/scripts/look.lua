-- The meta of a checkpoint, where its parts are, and what is small of them.
-- KEYS  metas: hash path -> meta; records: hash path -> record
-- ARGV  path, prefix of chunks, size up to which a part comes along
-- gives nothing if it is not there; else meta, record, and name and bytes of each small part
local meta = redis.call('HGET', KEYS[1], ARGV[1])
if not meta then
    return nil
end
local record = redis.call('HGET', KEYS[2], ARGV[1])
local found = {meta, record or ''}
for part, its in pairs(record and cjson.decode(record).parts or {}) do
    if its.count == 1 and tonumber(its.size) <= tonumber(ARGV[3]) then
        local data = redis.call('GET', ARGV[2] .. its.nonce .. ':' .. part .. ':0')
        if data then
            found[#found + 1] = part
            found[#found + 1] = data
        end
    end
end
return found

-- Holders of a prompt's leading pages, as runs of equal holders: page, holders, page, holders, ..., end.
-- KEYS[1] prefix of the keys; ARGV[1] chain values of 16 bytes. Stops at the first page that nobody holds.
local prefix, values = KEYS[1], ARGV[1]
local num_pages, found, last = #values / 16, {}, false
local width = 64
local start = 0
while start < num_pages do
  local stop = math.min(start + width, num_pages)
  local keys = {}
  for page = start, stop - 1 do
    keys[#keys + 1] = prefix .. string.sub(values, page * 16 + 1, page * 16 + 16)
  end
  local holders = redis.call('MGET', unpack(keys))
  for place = 1, #keys do
    local here = holders[place]
    if not here then
      found[#found + 1] = start + place - 1
      return found
    end
    if here ~= last then
      found[#found + 1] = start + place - 1
      found[#found + 1] = here
      last = here
    end
  end
  start, width = stop, 512
end
found[#found + 1] = num_pages
return found

-- One replica's changes, by the one router that holds its lease. Records of a key are sorted, so that pages with the
-- same holders have equal values. A repeated call changes nothing but expiries.
-- KEYS: prefix, lease, marker. ARGV: router, record, lease ms, expiry ms, most records, added, removed, mark (0/1).
-- Returns -1: the lease is another's; 0: the index lost what this replica had put there; 1: done.
local prefix, lease, marker = KEYS[1], KEYS[2], KEYS[3]
local router, record, added, removed = ARGV[1], ARGV[2], ARGV[6], ARGV[7]
local expiry, most = ARGV[4], tonumber(ARGV[5])
if redis.call('GET', lease) ~= router then
  return -1
end
redis.call('PEXPIRE', lease, ARGV[3])
local replica = string.sub(record, 1, 4)

-- The value without this replica's records, and where its record belongs.
local function without(value)
  local kept, place = {}, 1
  for at = 1, #value, 8 do
    local other = string.sub(value, at, at + 7)
    if string.sub(other, 1, 4) ~= replica then
      kept[#kept + 1] = other
      if other < record then
        place = #kept + 1
      end
    end
  end
  return kept, place
end

for at = 1, #removed, 16 do
  local key = prefix .. string.sub(removed, at, at + 15)
  local value = redis.call('GET', key)
  if value then
    local kept = without(value)
    if #kept == 0 then
      redis.call('DEL', key)
    elseif #kept * 8 ~= #value then
      redis.call('SET', key, table.concat(kept), 'KEEPTTL')
    end
  end
end

for at = 1, #added, 16 do
  local key = prefix .. string.sub(added, at, at + 15)
  local value = redis.call('GET', key)
  if not value then
    redis.call('SET', key, record, 'PX', expiry)
  else
    local kept, place = without(value)
    if #kept >= most then
      table.remove(kept, string.byte(record, 8) % #kept + 1)
      place = math.min(place, #kept + 1)
    end
    table.insert(kept, place, record)
    redis.call('SET', key, table.concat(kept), 'PX', expiry)
  end
end

if ARGV[8] == '1' then
  redis.call('SET', marker, record, 'PX', expiry)
  return 1
end
if redis.call('GET', marker) == record then
  redis.call('PEXPIRE', marker, expiry)
  return 1
end
return 0

-- The quota ledger of one tenant, one step per call: everything or nothing. The twin of limits.py.
-- KEYS: 1 leases (zset, id -> expiry), 2 reservations (hash), 3 outcomes (prefix of hashes), 4 journal (stream),
--       5.. one per limit or charge of the call. All carry the same {tenant} tag, as do the keys that stored charges name.
-- ARGV: 1 operation, 2 arguments as JSON, 3.. serialized messages. Times are milliseconds of this server's clock.
-- A level is "level time rate": units, when they were counted, units per millisecond that leak. Concurrency is a set.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local operation, args = ARGV[1], cjson.decode(ARGV[2])
local LEASES, HELD, OUTCOMES, JOURNAL, FIRST = KEYS[1], KEYS[2], KEYS[3], KEYS[4], 4
local DAY, BUCKET, BUCKETS = 86400000, 14400000, 6
local SLACK, CONCURRENCY_WAIT = 1e-9, 1000

local function exact(number) return string.format('%.17g', number) end

-- Levels -----------------------------------------------------------------------------------------------------------

local function read(key, rate)
  local text = redis.call('GET', key)
  if not text then return 0, rate or 0 end
  local level, at, stored = string.match(text, '^(%S+) (%S+) (%S+)$')
  rate = rate or tonumber(stored)
  return math.max(0, tonumber(level) - rate * math.max(0, now - tonumber(at))), rate
end

local function write(key, level, rate)
  if level <= 0 then redis.call('DEL', key) return end
  local life = rate > 0 and math.min(level / rate, 2 * DAY) or 2 * DAY
  redis.call('SET', key, exact(level) .. ' ' .. exact(now) .. ' ' .. exact(rate), 'PX', math.ceil(life) + 60000)
end

local function take(charge, id, rate)
  if charge.name == 'concurrency' then
    redis.call('SADD', charge.key, id)
    redis.call('PEXPIRE', charge.key, DAY)
  else
    local level, known = read(charge.key, rate)
    write(charge.key, level + tonumber(charge.units), known)
  end
end

local function correct(charge, correction, since)
  local level, rate = read(charge.key)
  if rate == 0 then rate = tonumber(charge.rate) end
  if correction < 0 then correction = math.min(0, correction + rate * math.max(0, now - since)) end
  local after = math.max(0, level + correction)
  if after ~= level then write(charge.key, after, rate) end
end

local function wait(limit, level)
  local units, slack = tonumber(limit.units), SLACK * math.max(1, limit.capacity)
  if level + units <= limit.capacity + slack then return 0 end
  if units > limit.capacity + slack then return math.huge end
  if tonumber(limit.rate) == 0 then return CONCURRENCY_WAIT end
  return (level + units - limit.capacity) / tonumber(limit.rate)
end

local function current(limit)
  if limit.name == 'concurrency' then return redis.call('SCARD', limit.key) end
  return (read(limit.key, tonumber(limit.rate)))
end

-- What is known of an id ---------------------------------------------------------------------------------------------

local function outcome(id)
  local newest = math.floor(now / BUCKET)
  -- One further, for a clock that was set back since.
  for bucket = newest + 1, newest - BUCKETS, -1 do
    local key = OUTCOMES .. ':' .. string.format('%d', bucket)
    local text = redis.call('HGET', key, id)
    if text then
      local rank, kind, requests, input, output, spend = string.match(text, '^(%S) (%S+) (%S+) (%S+) (%S+) (%S+)$')
      return {key = key, rank = tonumber(rank), kind = kind, requests = tonumber(requests), input = tonumber(input),
              output = tonumber(output), spend = tonumber(spend)}
    end
  end
end

local function conclude(id, known, billed)
  if known then redis.call('HDEL', known.key, id) end
  local key = OUTCOMES .. ':' .. string.format('%d', math.floor(now / BUCKET))
  local words = {args.rank, args.kind, billed.requests, billed.input, billed.output, exact(billed.spend)}
  redis.call('HSET', key, id, table.concat(words, ' '))
  redis.call('PEXPIRE', key, DAY)
end

local function reservation(id)
  local text = redis.call('HGET', HELD, 'c:' .. id)
  if not text then return nil end
  local at, terms = string.match(text, '^(%S+) (.*)$')
  return {at = tonumber(at), terms = cjson.decode(terms), text = text}
end

local function hold(id, terms, message)
  redis.call('HSET', HELD, 'c:' .. id, exact(now) .. ' ' .. terms, 'p:' .. id, message)
  redis.call('ZADD', LEASES, now + args.lease_ms, id)
  redis.call('PEXPIRE', HELD, DAY)
  redis.call('PEXPIRE', LEASES, DAY)
end

local function forget(id)
  redis.call('HDEL', HELD, 'c:' .. id, 'p:' .. id)
  redis.call('ZREM', LEASES, id)
end

-- Operations -----------------------------------------------------------------------------------------------------------

local operations = {}

local function levels_now()
  local found = {}
  for i, limit in ipairs(args.limits) do
    limit.key = KEYS[FIRST + i]
    found[i] = current(limit)
  end
  return found
end

local function answer(verdict, detail, levels, limit)
  local words = {verdict, exact(now), detail, limit or 0}
  for i, level in ipairs(levels) do words[4 + i] = exact(level) end
  return words
end

function operations.admit()
  local levels = levels_now()
  if outcome(args.id) then return answer('settled', '', levels) end
  local known = reservation(args.id)
  if known then return answer('held', known.text, levels) end
  if args.retry_of then
    local replaced = outcome(args.retry_of)
    if not replaced or replaced.kind ~= 'failed' then return answer('retry_of', '', levels) end
  end
  local longest, refusing = 0, 0
  for i, limit in ipairs(args.limits) do
    local needed = wait(limit, levels[i])
    if needed > longest then longest, refusing = needed, i end
  end
  if refusing > 0 then return answer('refused', exact(longest), levels, refusing) end
  for i, limit in ipairs(args.limits) do
    take(limit, args.id, tonumber(limit.rate))
    levels[i] = levels[i] + tonumber(limit.units)
  end
  hold(args.id, args.terms, ARGV[3])
  return answer('admitted', exact(now) .. ' ' .. args.terms, levels)
end

function operations.renew()
  local states = {exact(now)}
  for i, item in ipairs(args.items) do
    if outcome(item.id) then
      states[i + 1] = 'settled'
    elseif reservation(item.id) then
      redis.call('ZADD', LEASES, now + args.lease_ms, item.id)
      redis.call('PEXPIRE', HELD, DAY)
      redis.call('PEXPIRE', LEASES, DAY)
      states[i + 1] = 'renewed'
    else
      local charges = cjson.decode(item.terms).charges
      for _, charge in ipairs(charges) do take(charge, item.id, tonumber(charge.rate)) end
      hold(item.id, item.terms, ARGV[2 + i])
      states[i + 1] = 'restored'
    end
    if states[i + 1] ~= 'settled' then
      for _, charge in ipairs(cjson.decode(item.terms).charges) do
        if charge.name == 'concurrency' then redis.call('PEXPIRE', charge.key, DAY) end
      end
    end
  end
  return states
end

local USED = {
  rpm = function(b) return b.requests end,
  tpm = function(b) return b.input + b.output end,
  input_tpm = function(b) return b.input end,
  output_tpm = function(b) return b.output end,
  tokens_per_day = function(b) return b.input + b.output end,
  spend_per_day = function(b) return b.spend end,
}

local function bill(price)
  local spend = args.uncached * tonumber(price[1]) + args.cached * tonumber(price[2]) + args.output * tonumber(price[3])
  return {requests = args.requests, input = args.uncached + args.cached, output = args.output, spend = spend / 1000000}
end

function operations.settle()
  local known, held = outcome(args.id), reservation(args.id)
  if known and known.rank >= args.rank then return {'duplicate', exact(now), exact(known.spend), ''} end
  if args.only_expired then
    local expiry = redis.call('ZSCORE', LEASES, args.id)
    if not held or not expiry or tonumber(expiry) > now then return {'duplicate', exact(now), '0', ''} end
  end
  local terms = held and held.terms or cjson.decode(args.terms)
  local billed = bill(terms.price)
  local since = held and held.at or args.at
  for _, charge in ipairs(terms.charges) do
    if charge.name == 'concurrency' then
      redis.call('SREM', charge.key, args.id)
    else
      local before = held and tonumber(charge.units) or known and USED[charge.name](known) or 0
      correct(charge, USED[charge.name](billed) - before, since)
    end
  end
  forget(args.id)
  conclude(args.id, known, billed)
  local row = redis.call('XADD', JOURNAL, '*', 's', ARGV[3], 'c', exact(billed.spend), 'k', known and 1 or 0)
  redis.call('PEXPIRE', JOURNAL, 7 * DAY)
  return {known and 'corrected' or 'applied', exact(now), exact(billed.spend), row}
end

function operations.tour()
  local found = {exact(now), redis.call('XLEN', JOURNAL)}
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, args.count)) do
    local message = redis.call('HGET', HELD, 'p:' .. id)
    if message then found[#found + 1] = message else forget(id) end
  end
  return found
end

function operations.levels()
  return answer('levels', '', levels_now())
end

return operations[operation]()

"""What Redis does in one step, in its own language. Arguments are one MessagePack document each.

Keys below a namespace: ``kind:key`` holds a record, ``kind:*`` the keys of a kind, ``term:*`` the names that have a
term, with their numbers as scores; ``terms`` all terms; ``by:*`` the names by a number; ``row:*`` the terms of a name.
"""

from __future__ import annotations

__all__ = ["COMMIT", "SEARCH"]

COMMIT = """
local ns, plan = KEYS[1], cmsgpack.unpack(ARGV[1])
local done = ns .. ':done:' .. plan.id
if redis.call('EXISTS', done) == 1 then return 1 end
for _, seen in ipairs(plan.seen) do
  local value = redis.call('GET', ns .. ':' .. seen[1] .. ':' .. seen[2])
  if (value and redis.sha1hex(value) or '') ~= seen[3] then return 0 end
end

local columns = {'number', 'samples', 'bytes', 'created'}

local function forget(name)
  local packed = redis.call('GET', ns .. ':row:' .. name)
  if not packed then return end
  for _, term in ipairs(cmsgpack.unpack(packed)) do
    local key = ns .. ':term:' .. term
    redis.call('ZREM', key, name)
    if redis.call('EXISTS', key) == 0 then redis.call('ZREM', ns .. ':terms', term) end
  end
  for _, column in ipairs(columns) do redis.call('ZREM', ns .. ':by:' .. column, name) end
  redis.call('DEL', ns .. ':row:' .. name)
end

local function remember(name, numbers, terms)
  forget(name)
  for at, column in ipairs(columns) do redis.call('ZADD', ns .. ':by:' .. column, numbers[at], name) end
  for _, term in ipairs(terms) do
    redis.call('ZADD', ns .. ':term:' .. term, numbers[1], name)
    redis.call('ZADD', ns .. ':terms', 0, term)
  end
  redis.call('SET', ns .. ':row:' .. name, cmsgpack.pack(terms))
end

for _, act in ipairs(plan.acts) do
  if act[1] == 'put' then
    redis.call('SET', ns .. ':' .. act[2] .. ':' .. act[3], act[4])
    redis.call('ZADD', ns .. ':kind:' .. act[2], 0, act[3])
  elseif act[1] == 'delete' then
    redis.call('DEL', ns .. ':' .. act[2] .. ':' .. act[3])
    redis.call('ZREM', ns .. ':kind:' .. act[2], act[3])
  elseif act[1] == 'row' then
    remember(act[2], act[3], act[4])
  else
    forget(act[2])
  end
end
redis.call('SET', done, '1', 'EX', 600)
return 1
"""
"""Apply changes if what they were made from still stands. A second try of the same changes is told as done."""

SEARCH = """
local ns, asked = KEYS[1], cmsgpack.unpack(ARGV[1])
local groups = {}
for at, term in ipairs(asked.terms) do
  local group = {keys = {}, size = 0}
  if term[2] then
    for _, found in ipairs(redis.call('ZRANGEBYLEX', ns .. ':terms', '[' .. term[1], '(' .. term[1] .. '\\255')) do
      group.keys[#group.keys + 1] = ns .. ':term:' .. found
    end
  else
    group.keys[1] = ns .. ':term:' .. term[1]
  end
  for _, key in ipairs(group.keys) do group.size = group.size + redis.call('ZCARD', key) end
  groups[at] = group
end

local first = {keys = {ns .. ':by:number'}, size = redis.call('ZCARD', ns .. ':by:number')}
for _, group in ipairs(groups) do
  if group.size <= first.size then first = group end
end

local function fits(name)
  for _, group in ipairs(groups) do
    if group ~= first then
      local has = false
      for _, key in ipairs(group.keys) do
        if redis.call('ZSCORE', key, name) then has = true break end
      end
      if not has then return false end
    end
  end
  for _, bound in ipairs(asked.bounds) do
    local value = tonumber(redis.call('ZSCORE', ns .. ':by:' .. bound[1], name))
    if value < bound[2] or value > bound[3] then return false end
  end
  return true
end

local found, passed = {}, 0
local function take(name)
  if fits(name) then
    passed = passed + 1
    if passed > asked.offset then found[#found + 1] = name end
  end
  return #found >= asked.limit
end

local range, size = nil, first.size
for _, bound in ipairs(asked.bounds) do
  local count = redis.call('ZCOUNT', ns .. ':by:' .. bound[1], bound[2], bound[3])
  if count < size then range, size = bound, count end
end

if #first.keys == 1 and (range == nil or size * 8 > first.size) then
  for start = 0, first.size - 1, 500 do
    for _, name in ipairs(redis.call('ZREVRANGE', first.keys[1], start, start + 499)) do
      if take(name) then return found end
    end
  end
  return found
end

local numbers, names = {}, {}
local function note(name)
  if not numbers[name] then
    numbers[name] = tonumber(redis.call('ZSCORE', ns .. ':by:number', name))
    names[#names + 1] = name
  end
end
if range ~= nil then
  groups[#groups + 1] = first
  first = nil
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', ns .. ':by:' .. range[1], range[2], range[3])) do note(name) end
else
  for _, key in ipairs(first.keys) do
    for _, name in ipairs(redis.call('ZRANGE', key, 0, -1)) do note(name) end
  end
end
table.sort(names, function(one, two) return numbers[one] > numbers[two] end)
for _, name in ipairs(names) do
  if take(name) then return found end
end
return found
"""
"""Walk the smallest set of names that could hold the answer, those with the greatest numbers first."""

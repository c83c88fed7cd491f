"""An index in Redis: optimistic transactions and search, each in one Lua script."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from shoal.errors import CatalogConnectionError, MissingExtraError, OptionError, ShoalError, ShoalWarning

from ._backend import Key, Query, Row, Transaction

__all__ = ["RedisBackend"]

T = TypeVar("T")

_TIMEOUT_S = 30.0
_MAX_TRIES = 1000


def _module() -> Any:
    try:
        import redis
    except ImportError as error:
        raise MissingExtraError(
            "the package redis cannot be imported", found=error, hint="pip install 'shoal[redis]'"
        ) from error
    return redis


class RedisBackend:
    """A client of Redis, the user's own or one by URL; its pool of connections is safe with threads and forks."""

    def __init__(self, *, url: str | None = None, client: Any = None, namespace: str = "shoal") -> None:
        self.location = url
        self._client = client
        self._ns = namespace
        self._scripts: dict[str, Any] = {}
        self._is_checked = False

    @property
    def shown(self) -> str:
        """Host and port, without user and password."""
        if self.location is None:
            client: Any = self._client
            facts = client.connection_pool.connection_kwargs
            return f"redis://{facts.get('host', facts.get('path', 'localhost'))}:{facts.get('port', '')}".rstrip(":")
        parts = urlsplit(self.location)
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}{parts.path}"

    @contextlib.contextmanager
    def _reached(self) -> Iterator[Any]:
        redis = _module()
        if self._client is None:
            self._client = self._connected(redis)
        try:
            yield self._client
        except redis.exceptions.RedisError as error:
            raise CatalogConnectionError(
                "the Redis of the index failed", found=f"{self.shown}: {type(error).__name__}: {error}"
            ) from error

    def _connected(self, redis: Any) -> Any:
        options = {"socket_timeout": _TIMEOUT_S, "socket_connect_timeout": 5.0}
        try:
            return redis.Redis.from_url(self.location, **options)
        except ValueError:
            raise OptionError("this is no URL of a Redis", expected="redis://host:port/0", found=self.shown) from None

    def _run(self, client: Any, script: str, argument: Any) -> Any:
        if script not in self._scripts:
            self._scripts[script] = client.register_script(script)
        return self._scripts[script](keys=[self._ns], args=[msgspec.msgpack.encode(argument)], client=client)

    def _at(self, key: Key) -> str:
        return f"{self._ns}:{key[0]}:{key[1]}"

    def transact(self, change: Callable[[Transaction], T]) -> T:
        """Read, decide, and write if nothing that was read has changed; else again."""
        with self._reached() as client:
            self._warn_if_volatile(client)
            for attempt in range(_MAX_TRIES):
                tried = _Change(client, self._ns, self._at)
                try:
                    done = change(tried)
                except ShoalError:
                    if self._still_stands(client, tried):
                        raise
                else:
                    if not tried.acts or self._run(client, COMMIT, tried.plan()):
                        return done
                time.sleep(secrets.randbelow(1 + min(attempt, 20)) / 1000)  # let one of the others through
        raise CatalogConnectionError("too many others change the same entry", found=self.shown, hint="try again")

    def _still_stands(self, client: Any, tried: _Change) -> bool:
        """Whether nothing that was read has changed; else the reads were inconsistent, and so is the error."""
        keys = list(tried.seen)
        now = client.mget([self._at(key) for key in keys]) if keys else []
        return [_as_bytes(value) for value in now] == list(tried.seen.values())

    def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """All of them as of one moment."""
        if not keys:
            return []
        with self._reached() as client:
            return [_as_bytes(value) for value in client.mget([self._at(key) for key in keys])]

    def scan(self, kind: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[tuple[str, bytes]]:
        """By the sorted set of keys."""
        low = f"({after}".encode() if after.encode() >= prefix.encode() and after else f"[{prefix}".encode()
        high = b"(" + prefix.encode() + b"\xff" if prefix else b"+"
        with self._reached() as client:
            found = client.zrangebylex(f"{self._ns}:kind:{kind}", low, high, start=0, num=limit)
            names = [name.decode() if isinstance(name, bytes) else name for name in found]
            values = self.get_many([(kind, name) for name in names])
        return [(name, value) for name, value in zip(names, values, strict=True) if value is not None]

    def count(self, kind: str) -> int:
        """By the sorted set of keys."""
        with self._reached() as client:
            return int(client.zcard(f"{self._ns}:kind:{kind}"))

    def search(self, query: Query) -> list[str]:
        """In one script."""
        asked = {
            "terms": [(term.text, term.prefix) for term in query.terms],
            "bounds": query.bounds,
            "limit": query.limit,
            "offset": query.offset,
        }
        with self._reached() as client:
            found = self._run(client, SEARCH, asked)
        return [name.decode() if isinstance(name, bytes) else name for name in found]

    def close(self) -> None:
        """Close the connections of a client of our own."""
        if self.location is not None and self._client is not None:
            client, self._client = self._client, None
            self._scripts = {}
            client.close()

    def _warn_if_volatile(self, client: Any) -> None:
        """Warn once about a server that may lose the index."""
        if self._is_checked:
            return
        self._is_checked = True
        why = _why_volatile(client, _module())
        if why is not None:
            text = f"the Redis at {self.shown} may lose this index: {why}"
            warnings.warn(text, ShoalWarning, stacklevel=_stacklevel())


def _stacklevel() -> int:
    """Return the stack level of the caller of shoal, for the warning."""
    frame, level = sys._getframe(1), 1  # noqa: SLF001 - the only way before Python 3.12
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("shoal.", "contextlib")):
        frame, level = frame.f_back, level + 1
    return level


def _why_volatile(client: Any, redis: Any) -> str | None:
    """Return why a server may lose data; None if it does not, or does not show its settings."""
    try:
        told = _decode_config(client.config_get("save")) | _decode_config(client.config_get("appendonly"))
        room = _decode_config(client.config_get("maxmemory")) | _decode_config(client.config_get("maxmemory-policy"))
    except (redis.exceptions.ResponseError, redis.exceptions.AuthorizationError):
        return None  # a hosted Redis does not show its settings
    if told.get("appendonly") == "no" and not told.get("save"):
        return "it keeps nothing on disk, and forgets all when it restarts; start it with --appendonly yes"
    if room.get("maxmemory", "0") != "0" and room.get("maxmemory-policy", "").startswith("allkeys"):
        return f"it drops keys when memory is short (maxmemory-policy {room['maxmemory-policy']}); set noeviction"
    return None


def _decode_config(config: Any) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in dict(config).items()}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _as_bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value  # a client of the user's may decode


class _Change:
    """The records that a transaction has read, and the changes it makes."""

    def __init__(self, client: Any, namespace: str, at: Callable[[Key], str]) -> None:
        self._client = client
        self._ns = namespace
        self._at = at
        self.seen: dict[Key, bytes | None] = {}
        self._now: dict[Key, bytes | None] = {}
        self.acts: list[tuple[Any, ...]] = []

    def plan(self) -> dict[str, Any]:
        """For the script."""
        seen = [(*key, "" if value is None else _sha1(value)) for key, value in self.seen.items()]
        return {"id": secrets.token_hex(12), "seen": seen, "acts": self.acts}

    def get(self, key: Key) -> bytes | None:
        if key not in self._now:
            self._now[key] = self.seen[key] = _as_bytes(self._client.get(self._at(key)))
        return self._now[key]

    def put(self, key: Key, value: bytes) -> None:
        self._now[key] = value
        self.acts.append(("put", *key, value.decode()))  # records are JSON; bytes have no form in its MessagePack

    def delete(self, key: Key) -> None:
        self._now[key] = None
        self.acts.append(("delete", *key))

    def put_row(self, row: Row) -> None:
        numbers = (row.number, row.samples, row.bytes, row.created)
        self.acts.append(("row", row.name, numbers, row.terms))

    def delete_row(self, name: str) -> None:
        self.acts.append(("unrow", name))

    def next_number(self) -> int:
        return int(self._client.incr(f"{self._ns}:number"))


def _sha1(value: bytes) -> str:
    return hashlib.sha1(value, usedforsecurity=False).hexdigest()  # the hash that Redis scripts have


# Keys below a namespace: ``kind:key`` is a record, ``kind:*`` the keys of a kind, ``term:*`` the names that have a
# term, with their numbers as scores; ``terms`` all terms; ``by:*`` the names by a number; ``row:*`` the terms of a
# name.

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
"""Apply changes if the records they are based on have not changed. Repeating the same changes reports success."""

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
"""Walk the smallest set of names that can contain the result, greatest numbers first."""

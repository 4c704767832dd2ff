"""The disk cache: hits, misses, damage, bounds, and many writers at once."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from smalti.run.cache import Cache, folder, key

PARTS = {"ptx": b"text\n", "cubin": bytes(range(256)) * 100, "empty": b""}


def test_hit_and_miss(tmp_path):
    cache = Cache(tmp_path)
    assert cache.get(key(a=1)) is None
    cache.put(key(a=1), PARTS)
    assert cache.get(key(a=1)) == PARTS and cache.get(key(a=2)) is None
    cache.put(key(a=1), {"ptx": b"new"})
    assert Cache(tmp_path).get(key(a=1)) == {"ptx": b"new"}


def test_keys_depend_on_every_fact_and_not_on_order():
    assert key(a=1, b="x") == key(b="x", a=1)
    assert len({key(), key(a=1), key(a="1"), key(b=1), key(a=[1]), key(a=None), key(a=1, b=None)}) == 7
    with pytest.raises(TypeError):
        key(a=object())


def test_every_damaged_byte_is_a_miss_and_is_written_again(tmp_path):
    cache, name = Cache(tmp_path), key(a=1)
    cache.put(name, {"ptx": b"abc"})
    (file,) = [p for p in tmp_path.rglob("*") if p.is_file()]
    good = file.read_bytes()
    for at in range(len(good)):
        file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert cache.get(name) is None
        file.write_bytes(good[:at])
        assert cache.get(name) is None
    cache.put(name, {"ptx": b"abc"})
    assert cache.get(name) == {"ptx": b"abc"}
    other = cache._path(key(a=2))
    other.parent.mkdir(exist_ok=True)
    os.replace(file, other)
    assert cache.get(key(a=2)) is None


def test_another_format_number_is_a_miss(tmp_path, monkeypatch):
    Cache(tmp_path).put(key(a=1), PARTS)
    monkeypatch.setattr("smalti.run.cache.FORMAT", 2)
    assert Cache(tmp_path).get(key(a=1)) is None


def test_the_least_recently_used_entries_go_first(tmp_path):
    cache = Cache(tmp_path, limit=35_000)
    for n in range(3):
        cache.put(key(n=n), {"x": bytes(10_000)})
        os.utime(cache._path(key(n=n)), ns=(n * 10**9, n * 10**9))
    assert cache.get(key(n=0)) is not None  # used now
    cache.put(key(n=3), {"x": bytes(10_000)})
    assert [cache.get(key(n=n)) is not None for n in range(4)] == [True, False, True, True]
    small = Cache(tmp_path, limit=0)
    small.put(key(n=4), {"x": b""})
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file")
    cache.put(key(a=1), PARTS)
    assert cache.get(key(a=1)) is None


def test_many_writers(tmp_path):
    def one(n):
        cache = Cache(tmp_path)
        cache.put(key(n=n % 3), {"x": json.dumps(n % 3).encode() * 50_000})
        found = cache.get(key(n=n % 3))
        return found is None or found["x"] == json.dumps(n % 3).encode() * 50_000

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(60)))
    assert not list(tmp_path.rglob("*.part"))


def test_a_hit_is_fast(tmp_path):
    cache = Cache(tmp_path)
    cache.put(key(a=1), {"ptx": bytes(500_000), "cubin": bytes(500_000)})
    best = min(_timed(lambda: cache.get(key(a=1))) for _ in range(5))
    assert best < 0.01


def _timed(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    monkeypatch.delenv("SMALTI_CACHE", raising=False)
    assert folder() == tmp_path / "x" / "smalti"
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path / "s"))
    assert folder() == tmp_path / "s"

"""What goes wrong between us and a server: the right bytes come out, or a clear error, and never a hang."""

from __future__ import annotations

import random
import threading
import time

import pytest
from tests.store.servers import BUCKET, SECRET_KEY, Fault, fault_proxy
from tests.store.settings import keys

from shoal.errors import AccessDeniedError, ObjectChangedError, ObjectNotFoundError, StoreError, StoreTimeoutError
from shoal.store import configure, exists, get, get_many, put, put_many, stat, statistics, store_for

DATA = random.Random(5).randbytes(6_000_000)


def ranges_asked(proxy):
    return [asked for method, _, asked, _ in proxy.requests if method == "GET"]


@pytest.mark.parametrize("kind", ["reset", "cut"])
@pytest.mark.parametrize("after", [0, 1, 3_500_000, len(DATA) - 1])
def test_a_body_that_breaks_is_taken_up_where_it_broke(proxy, url, kind, after):
    proxy.faults.append(Fault(kind, after=after))
    same = get(url) == DATA
    assert same
    assert proxy.happened == {kind: 1}
    _, second = ranges_asked(proxy)
    begin = int(second.removeprefix("bytes=").partition("-")[0])
    assert begin <= after
    # Bytes that came are not fetched again; a reset takes those along that were not read yet.
    assert begin > 0 or after < 2_000_000 or kind == "reset"


def test_many_breaks_in_one_body_are_survived(proxy, url):
    proxy.faults.append(Fault("reset", times=4, after=1_200_000))
    same = get(url) == DATA
    assert same
    assert proxy.happened == {"reset": 4}


def test_a_line_that_breaks_again_and_again_is_good_enough_while_bytes_come(proxy, url):
    configure(url, retries=2)
    proxy.faults.append(Fault("cut", times=8, after=1_500_000))
    same = get(url) == DATA
    assert same
    assert proxy.happened["cut"] > 2
    proxy.faults[:] = [Fault("cut", times=100, after=1000)]
    with pytest.raises(StoreError, match="broke"):
        store_for(url).open(url).read(0, len(DATA))


def test_an_answer_with_fewer_bytes_than_asked_for_is_not_believed(proxy, url):
    proxy.faults.append(Fault("fewer-bytes", after=100_000))
    same = get(url) == DATA
    assert same
    proxy.faults.append(Fault("fewer-bytes", times=100, after=0))
    configure(url, retries=1)
    with pytest.raises(StoreError):
        get(url)


def test_ranges_through_a_bad_line_are_byte_exact(proxy, url):
    """An epoch of ranged reads with one fault in five."""
    proxy.faults += [Fault("reset", times=1, after=at) for at in (0, 50_000, 300_000)]
    proxy.faults += [Fault("status", status=500), Fault("cut", after=10), Fault("latency", seconds=0.01)]
    draw = random.Random(1)
    reader = store_for(url).open(url)
    for _ in range(20):
        starts = [draw.randrange(len(DATA)) for _ in range(10)]
        stops = [start + draw.randrange(1, 200_000) for start in starts]
        same = reader.read_many(starts, stops) == [DATA[a:b] for a, b in zip(starts, stops, strict=True)]
        assert same
    reader.close()
    assert sum(proxy.happened.values()) == 6


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429, 408])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
def test_a_passing_failure_is_tried_again(proxy, broken, status, method):
    url = f"{broken}/small"
    put(url, b"before")
    before = statistics()
    proxy.faults.append(Fault("status", method=method, status=status))
    if method == "PUT":
        put(url, b"after")
        assert get(url) == b"after"
    else:
        assert (get(url) == b"before") if method == "GET" else (stat(url).size == 6)
        assert (statistics() - before).retries == 1
    assert proxy.happened == {"status": 1}


@pytest.mark.parametrize("status", [400, 403, 404, 412])
def test_a_lasting_failure_is_not(proxy, broken, status):
    url = f"{broken}/small"
    put(url, b"x")
    configure(f"s3://{BUCKET}", credential_provider=None, profile=None)
    configure(url, credential_provider=keys)
    proxy.faults.append(Fault("status", status=status, times=100))
    with pytest.raises(StoreError) as caught:
        store_for(url).read_all(url)
    kinds = {403: AccessDeniedError, 404: ObjectNotFoundError, 412: ObjectChangedError}
    assert isinstance(caught.value, kinds.get(status, StoreError))
    assert url in str(caught.value)
    assert proxy.happened["status"] <= 4  # once, once more with new credentials, and the same without a range


def test_retry_after_is_waited_for(proxy, url):
    """The first 429 shows no header to us; the second one, asked with the standard library, does."""
    reader = store_for(url).open(url)
    proxy.requests.clear()
    proxy.faults.append(Fault("status", status=429, times=2, headers={"Retry-After": "2"}))
    same = reader.read(1000, 2000) == DATA[1000:2000]
    assert same
    times = [at for method, _, _, at in proxy.requests if method == "GET"]
    assert len(times) == 3
    assert times[1] - times[0] < 2 <= times[2] - times[1]


def test_headers_of_the_provider_go_along_after_a_429(http):
    """Asked with the standard library, too: the same object, behind the same door."""
    http.objects["/a"] = DATA[:100_000]
    http.secret = "Bearer hunter2"
    with fault_proxy(http.url) as proxy:
        configure(proxy.url, credential_provider=lambda: {"headers": {"Authorization": "Bearer hunter2"}})
        proxy.faults.append(Fault("status", status=429, times=1))
        same = get(f"{proxy.url}/a") == DATA[:100_000]
        assert same
        assert proxy.happened == {"status": 1}


def test_a_server_that_wants_to_be_left_alone_for_long_is(proxy, url):
    proxy.faults.append(Fault("status", status=503, times=2, headers={"Retry-After": "86400"}))
    start = time.monotonic()
    with pytest.raises(StoreError, match="503"):
        store_for(url).open(url).read(0, 10)
    assert time.monotonic() - start < 30


def test_a_failure_that_does_not_pass_ends_with_how_often_it_was_tried(proxy, url):
    configure(url, retries=2)
    proxy.faults.append(Fault("status", status=500, times=100))
    with pytest.raises(StoreError, match=r"500 SlowDown.*after 3 attempts"):
        store_for(url).open(url).read(0, 10)
    assert proxy.happened == {"status": 3}


def test_an_object_replaced_while_it_is_read_is_an_error(proxy, url):
    reader = store_for(url).open(url)
    assert reader.read(5000, 5004) == DATA[5000:5004]
    put(url, DATA[::-1])
    with pytest.raises(ObjectChangedError, match="replaced"):
        reader.read(5000, 5004)
    reader.close()


def test_an_object_replaced_between_a_break_and_its_repair_is_an_error(proxy, url):
    proxy.faults.append(Fault("reset", after=2_500_000))
    proxy.faults.append(Fault("other-etag"))
    with pytest.raises(ObjectChangedError, match="replaced"):
        get(url)


@pytest.mark.parametrize("kind", ["hang", "drip"])
def test_a_server_that_does_not_go_on_is_given_up(proxy, url, kind):
    configure(url, timeout=0.4, retries=1)
    reader = store_for(url).open(url)
    proxy.faults.append(Fault(kind, times=100, after=1000, seconds=30 if kind == "hang" else 0.05))
    start = time.monotonic()
    with pytest.raises(StoreTimeoutError) as caught:
        reader.read(0, 100_000)
    assert isinstance(caught.value, TimeoutError)
    assert time.monotonic() - start < 20
    assert proxy.happened == {kind: 2}


def test_a_slow_drip_is_overtaken_by_asking_again(proxy, url):
    configure(url, timeout=0.5)
    reader = store_for(url).open(url)
    proxy.faults.append(Fault("drip", times=1, after=1000, seconds=0.1))
    assert reader.read(0, 5000) == DATA[:5000]


def test_a_server_that_is_not_there_is_an_error_soon():
    configure("s3://nowhere", endpoint="http://127.0.0.1:1", credential_provider=keys, retries=1, timeout=5)
    with pytest.raises(StoreError, match=r"cannot be reached.*check the endpoint http://127\.0\.0\.1:1"):
        get("s3://nowhere/a")
    with pytest.raises(StoreError):
        put("s3://nowhere/a", b"x")
    with pytest.raises(StoreError):
        exists("s3://nowhere/a")


def test_parts_that_fail_are_sent_again(proxy, broken):
    proxy.faults.append(Fault("status", method="PUT", path="partNumber=2", status=503, times=2))
    writer = store_for(broken).create(f"{broken}/big")
    step = DATA[:1_000_003]
    for _ in range(45):
        writer.write(step)
    assert writer.commit().size == 45 * len(step)
    assert proxy.happened == {"status": 2}
    same = get(f"{broken}/big") == step * 45
    assert same


def write_all(writer, steps):
    for _ in range(steps):
        writer.write(DATA[:1_000_000])
    writer.commit()


def test_an_upload_that_fails_shows_nothing_and_leaves_no_parts(proxy, broken, s3_client):
    configure(broken, retries=1)
    proxy.faults.append(Fault("status", method="PUT", path="partNumber", status=500, times=10_000))
    writer = store_for(broken).create(f"{broken}/big")
    with pytest.raises(StoreError, match="500"):
        write_all(writer, 120)
    proxy.faults.clear()
    writer.abort()
    assert not exists(f"{broken}/big")
    assert s3_client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []) == []


def test_an_upload_whose_last_step_fails_is_not_reported_as_done(proxy, broken):
    configure(broken, retries=1)
    proxy.faults.append(Fault("status", method="POST", path="uploadId", status=500, times=100))
    writer = store_for(broken).create(f"{broken}/big")
    for _ in range(45):
        writer.write(DATA[:1_000_000])
    with pytest.raises(StoreError):
        writer.commit()
    writer.abort()
    assert not exists(f"{broken}/big")


def test_appends_at_once_lose_nothing(broken):
    """Each is a conditional write; whoever comes second reads again."""
    url, lines = f"{broken}/journal", [b"%03d\n" % number for number in range(12)]
    threads = [threading.Thread(target=store_for(url).append, args=(url, line)) for line in lines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(get(url).splitlines(keepends=True)) == lines


def test_no_more_requests_are_in_flight_than_allowed(proxy, broken):
    """Counted at the server, over reads, writes and lists of many threads."""
    configure(max_in_flight=3)
    configure(broken, part_size=5 << 20)
    urls = [f"{broken}/{number}" for number in range(12)]
    put_many([(url, DATA[:200_000]) for url in urls], at_once=12)
    put(f"{broken}/big", DATA * 4)
    proxy.faults.append(Fault("latency", times=1000, seconds=0.01))
    threads = [threading.Thread(target=get, args=(f"{broken}/big",)) for _ in range(4)]
    threads.append(threading.Thread(target=lambda: put(f"{broken}/big2", DATA * 8)))
    for thread in threads:
        thread.start()
    assert get_many(urls, at_once=12) == [DATA[:200_000]] * 12
    for thread in threads:
        thread.join()
    assert proxy.most_at_once == 3
    assert statistics().in_flight == 0


def test_more_writers_than_places_do_not_wait_for_each_other(broken):
    """One thread holds them all open, and reads meanwhile."""
    configure(max_in_flight=2)
    put(f"{broken}/read", b"x")
    writers = [store_for(broken).create(f"{broken}/{number}") for number in range(3)]
    for writer in writers:
        for _ in range(9):
            writer.write(DATA[:1_000_000])
        assert get(f"{broken}/read") == b"x"
    for writer in writers:
        assert writer.commit().size == 9_000_000


def test_a_narrower_bound_holds_below_its_prefix(proxy, broken):
    configure(f"{broken}/slow", max_in_flight=1)
    urls = [f"{broken}/slow/{number}" for number in range(6)]
    put_many([(url, b"x") for url in urls], at_once=6)
    proxy.faults.append(Fault("latency", times=1000, seconds=0.01))
    get_many(urls, at_once=6)
    assert proxy.most_at_once == 1


def test_credentials_that_expire_are_asked_for_again(proxy, url):
    from datetime import UTC, datetime, timedelta

    asked = []

    def provider():
        asked.append(1)
        return {**keys(), "expires_at": datetime.now(UTC) - timedelta(seconds=1)}

    configure(url, credential_provider=provider)
    for _ in range(3):
        assert store_for(url).open(url).read(0, 4) == DATA[:4]
    assert len(asked) > 1


def test_credentials_that_the_server_no_longer_takes_are_asked_for_again(proxy, url):
    """They said that they were good for ever, and were not."""
    told = [{**keys(), "secret_access_key": "revoked"}]

    def provider():
        return told.pop() if told else keys()

    configure(url, credential_provider=provider)
    assert store_for(url).open(url).read(0, 4) == DATA[:4]


def test_wrong_credentials_give_one_sentence_without_secrets(proxy, url):
    configure(url, credential_provider=lambda: {**keys(), "secret_access_key": "wrong-" + SECRET_KEY})
    for act in (get, stat, lambda each: put(each, b"x"), lambda each: list(store_for(each).list(each))):
        with pytest.raises(AccessDeniedError) as caught:
            act(url)
        text = str(caught.value)
        assert "\n" not in text
        assert SECRET_KEY not in text
        assert isinstance(caught.value, PermissionError)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__


def test_a_provider_that_fails_is_named_and_not_quoted(proxy, url):
    def provider():
        raise RuntimeError(f"vault closed, token {SECRET_KEY}")

    configure(url, credential_provider=provider)
    with pytest.raises(AccessDeniedError, match="credential provider") as caught:
        get(url)
    assert SECRET_KEY not in str(caught.value)


def test_no_credentials_say_what_to_do(proxy, url, monkeypatch):
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    configure(f"s3://{BUCKET}", credential_provider=None, retries=0, timeout=5)
    with pytest.raises(AccessDeniedError, match=r"no credentials.*AWS_ACCESS_KEY_ID.*anonymous"):
        get(url)
    configure(f"s3://{BUCKET}", anonymous=True)
    with pytest.raises(AccessDeniedError):
        get(url)


@pytest.mark.parametrize("which", [0, 1])
def test_a_list_that_fails_at_some_page_is_whole(proxy, s3_endpoint, broken, which):
    """Pages that came before are not given twice."""
    configure(f"s3://{BUCKET}", endpoint=s3_endpoint)
    urls = [f"{broken}/{number:05d}" for number in range(1_100)]
    put_many([(url, b"x") for url in urls])
    configure(f"s3://{BUCKET}", endpoint=proxy.url)
    found = iter(store_for(broken).list(broken))
    proxy.faults.append(Fault("status", path="list-type=2" if which == 0 else "continuation-token", status=503))
    assert [info.url for info in found] == urls
    assert proxy.happened == {"status": 1}

"""A dataset in a bucket of a real S3 server, with faults and kills: compared with boto3, tarfile and NumPy."""

from __future__ import annotations

import io
import json
import tarfile

import boto3
import numpy as np
import pytest
from botocore.config import Config
from tests.jobs import s3
from tests.jobs.running import run, run_json
from tests.store.servers import ACCESS_KEY, BUCKET, SECRET_KEY, Fault, fault_proxy, seaweed

KEYS = [f"k{number:04d}" for number in range(s3.COUNT)]


@pytest.fixture(scope="module")
def endpoint():
    with seaweed() as url:
        yield url


@pytest.fixture(scope="module")
def client(endpoint):
    keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY, "region_name": "us-east-1"}
    config = Config(s3={"addressing_style": "path"}, proxies={})
    client = boto3.client("s3", endpoint_url=endpoint, config=config, **keys)
    yield client
    client.close()


def environment(endpoint):
    """As for AWS's own tools."""
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1"}
    return {"AWS_ENDPOINT_URL": endpoint, **keys}


def objects(client, prefix):
    """Every object below a prefix, by the rest of its name."""
    listed = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/").get("Contents", [])
    names = [entry["Key"] for entry in listed]
    return {
        name.removeprefix(prefix): client.get_object(Bucket=BUCKET, Key=name)["Body"].read() for name in sorted(names)
    }


def samples_of(found):
    samples = {}
    for name in sorted(name for name in found if name.endswith(".tar")):
        with tarfile.open(fileobj=io.BytesIO(found[name])) as tar:
            for member in tar:
                key, _, field = member.name.partition(".")
                samples.setdefault(key, {})[field] = tar.extractfile(member).read()
    return samples


def total(number):
    return float(s3.sample(number)["npy"].sum(dtype=float))


@pytest.fixture(scope="module")
def written(endpoint, client, tmp_path_factory):
    """A dataset whose writer was killed and whose connection was bad; its first shard as it was after the kill."""
    folder = tmp_path_factory.mktemp("s3")
    with fault_proxy(endpoint) as proxy:
        proxy.faults += [Fault("status", "PUT", ".tar", times=1), Fault("reset", "PUT", ".tar", times=1)]
        run("s3.py", "write", f"s3://{BUCKET}/job", cwd=folder, code=-9, DIE_AT="65", **environment(proxy.url))
        assert sum(proxy.happened.values()) == 2
        early = objects(client, "job")
        assert [name for name in early if name.endswith(".tar")] == [f"/train-{n:06d}.tar" for n in range(3)]
        run("s3.py", "write", f"s3://{BUCKET}/job", cwd=folder, **environment(proxy.url))
    found = objects(client, "job")
    for name, data in early.items():
        assert not name.endswith(".tar") or found[name] == data
    return folder


def test_a_killed_writer_goes_on_and_tars_hold_every_sample(written, client):
    samples = samples_of(objects(client, "job"))
    assert list(samples) == KEYS
    for number, fields in enumerate(samples.values()):
        expected = s3.sample(number)
        assert (np.load(io.BytesIO(fields["npy"])) == expected["npy"]).all()
        assert (int(fields["cls"]), json.loads(fields["json"])) == (expected["cls"], expected["json"])


def test_training_over_a_bad_connection_sees_what_a_good_one_would(written, endpoint):
    url = f"s3://{BUCKET}/job"
    with fault_proxy(endpoint) as proxy:
        proxy.faults += [
            Fault("status", "GET", ".tar", times=2),
            Fault("reset", "GET", ".tar", times=1, after=700),
            Fault("fewer-bytes", "GET", ".tar", times=1, after=300),
        ]
        (written / "run").mkdir()
        run("s3.py", "train", url, "run", cwd=written, code=-9, DIE_AT="17", **environment(proxy.url))
        assert sum(proxy.happened.values()) >= 3
    run("s3.py", "train", url, "run", cwd=written, **environment(endpoint))
    (written / "whole").mkdir()
    run("s3.py", "train", url, "whole", cwd=written, **environment(endpoint))

    def read(folder):
        lines = [line for path in sorted((written / folder).glob("seen-*")) for line in path.read_text().splitlines()]
        rows = {}
        for row in map(json.loads, lines):
            assert rows.setdefault(row["step"], row) == row  # what came again was the same
        return [rows[step] for step in sorted(rows)]

    steps = read("run")
    assert steps == read("whole")
    per_epoch = -(-s3.COUNT // 8)
    assert [row["step"] for row in steps] == list(range(1, 2 * per_epoch + 1))
    for row in steps:
        assert row["sums"] == [total(KEYS.index(key)) for key in row["keys"]]
    epochs = [[key for row in steps[start : start + per_epoch] for key in row["keys"]] for start in (0, per_epoch)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == KEYS
    assert epochs[0] != epochs[1]


def test_listing_growing_deleting_and_copying(written, endpoint, client):
    before = objects(client, "job")
    for name, data in before.items():
        client.put_object(Bucket=BUCKET, Key=f"grown{name}", Body=data)
    found = run_json("s3.py", "look", f"s3://{BUCKET}/grown", cwd=written, **environment(endpoint))
    after = objects(client, "grown")
    for name, data in before.items():
        assert not name.endswith(".tar") or after[name] == data  # no tar was rewritten
    count = s3.COUNT + 7
    kept = [number for number in range(count) if number != 3]

    assert found["listed"] == [[name, len(data)] for name, data in after.items()]
    assert found["downloaded"] == len(after)
    assert objects(client, "grown-again") == after
    assert {
        path.relative_to(written / "copy").as_posix() for path in (written / "copy").rglob("*") if path.is_file()
    } == {name.lstrip("/") for name in after}
    assert found["ok"] == [True, s3.COUNT]
    assert found["len"] == [s3.COUNT, count, count - 1, count - 1, count - 1, count - 1]
    assert len(samples_of(after)) == count
    assert found["wide"] == [f"k{number:04d}" for number in kept if 3 * number >= 240 and number % 5 != 1]
    assert found["classes"] == [number % 5 for number in range(85, count)]
    assert found["some"] == [total(number) for number in (3, 96, 50)]
    assert found["in order"] == found["cached"][0] == found["cached"][1] == [total(number) for number in kept]

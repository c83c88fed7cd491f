"""What type checkers infer: constructors and fields of packable classes, and the types of lenses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RIGHT = """
from typing import assert_type

import numpy as np
from numpy.typing import NDArray

from shoal.sample import (Lens, PackableSample, check_laws, default_network, from_fields, lens, packable)
from shoal.sample import structural_lens, unpack


@packable
class Sample:
    image: NDArray[np.float32]
    label: str
    score: float = 1.0


@packable(version="1.1.0", kw_only=True)
class Short:
    label: str


class Based(PackableSample, version="2.0.0"):
    n: int


sample = Sample(np.zeros(3, np.float32), "cat")
assert_type(sample.label, str)
assert_type(sample.score, float)
assert_type(unpack(Sample, b""), Sample)
assert_type(from_fields(Sample, {}), Sample)
assert_type(Based(3).packed, bytes)
assert_type(Based.from_bytes(b""), Based)
assert_type(Based(n=1).n, int)


@lens
def shorten(src: Sample) -> Short:
    return Short(label=src.label)


@lens(register=False)
def lengthen(src: Short) -> Based:
    return Based(len(src.label))


@shorten.putter
def put(view: Short, src: Sample) -> Sample:
    return Sample(src.image, view.label, src.score)


assert_type(shorten, Lens[Sample, Short])
assert_type(lengthen, Lens[Short, Based])
assert_type(shorten(sample), Short)
assert_type(shorten.put(Short(label="x"), sample), Sample)
assert_type(shorten | lengthen, Lens[Sample, Based])
assert_type(lengthen @ shorten, Lens[Sample, Based])
assert_type(Lens.identity(Sample), Lens[Sample, Sample])
assert_type(structural_lens(Sample, Short), Lens[Sample, Short])
assert_type(default_network().find(Sample, Short), Lens[Sample, Short])
check_laws(shorten, [sample]).require()
"""

WRONG = {
    "a missing argument": "Sample()",
    "a wrong argument": "Sample(3, 'x')",
    "an unknown field": "Sample(np.zeros(1, np.float32), 'x').nothing",
    "keywords only": "Short('x')",
    "a lens of another type": "shorten(Short(label='x'))",
    "lenses that do not meet": "shorten | shorten",
    "a view of another type": "shorten.put(sample, sample)",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("typing")
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(
        RIGHT + "\n" + "\n".join(f"{line}  # {name}" for name, line in WRONG.items()) + "\n"
    )
    return folder


def run(checker: list[str], folder: Path, file: str) -> str:
    command = [sys.executable, "-m", *checker, str(folder / file)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize(
    "checker",
    [["mypy", "--strict", "--no-incremental"], ["pyright", "--pythonpath", sys.executable]],
    ids=["mypy", "pyright"],
)
def test_checkers_see_what_runs_and_what_does_not(checker, files):
    right, wrong = run(checker, files, "right.py"), run(checker, files, "wrong.py")
    assert " error" not in right.replace("0 errors", ""), right
    first = (RIGHT + "\n").count("\n") + 1
    missed = [name for number, name in enumerate(WRONG, first) if f"wrong.py:{number}:" not in wrong]
    assert missed == [], wrong

"""Packable classes: constructors, equality, keys, former names, and classes of other libraries."""

from __future__ import annotations

import copy
import dataclasses
import enum
import multiprocessing
import pickle
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgpack
import msgspec
import numpy as np
import pydantic
import pytest
from numpy.typing import NDArray

from shoal.errors import SchemaError, SchemaMismatchError
from shoal.sample import PackableSample, as_wds, pack, packable, schema_of, unique_key, unpack


@packable
class ImageSample:
    """An image and its label."""

    image: NDArray
    label: str
    confidence: float = 1.0


@packable
class Measured(ImageSample):
    width: int = 0


class Based(PackableSample, version="2.1.0"):
    label: str
    tags: list[str] = field(default_factory=list)


class Outer(PackableSample):
    later: Later  # defined below


class Later(PackableSample):
    n: int


def sample(**changes: Any) -> ImageSample:
    return ImageSample(**{"image": np.arange(4.0), "label": "cat", **changes})


def test_it_is_a_dataclass_with_the_class_s_own_name():
    assert dataclasses.is_dataclass(ImageSample)
    assert (ImageSample.__name__, ImageSample.__module__) == ("ImageSample", __name__)
    assert repr(ImageSample(np.zeros(1), "x")) == "ImageSample(image=array([0.]), label='x', confidence=1.0)"
    assert schema_of(ImageSample).description == "An image and its label."


def test_equality_works_with_arrays():
    assert sample() == sample()
    assert sample() != sample(image=np.arange(4.0, dtype=np.float32))
    assert sample(image=np.array([np.nan])) == sample(image=np.array([np.nan]))
    assert sample(confidence=float("nan")) == sample(confidence=float("nan"))
    assert sample() != Measured(np.arange(4.0), "cat")
    assert sample() != "cat"


def test_inherited_fields_come_first_and_are_stored():
    measured = Measured(np.zeros(2), "dog", 0.5, width=3)
    assert schema_of(Measured).names == ("image", "label", "confidence", "width")
    assert Measured.from_bytes(measured.packed) == measured
    assert ImageSample.from_bytes(measured.packed) == ImageSample(np.zeros(2), "dog", 0.5)


def test_a_subclass_without_the_decorator_has_the_fields_of_its_base():
    class Quiet(ImageSample):
        def shout(self) -> str:
            return self.label.upper()

    assert Quiet.from_bytes(Quiet(np.zeros(1), "x").packed).shout() == "X"


def test_post_init_is_called_on_making_and_on_reading():
    @packable
    class Counted:
        n: int
        doubled: int = field(init=False)

        def __post_init__(self) -> None:
            self.doubled = 2 * self.n

    assert msgpack.unpackb(Counted(3).packed) == {"n": 3}
    assert Counted.from_bytes(Counted(3).packed).doubled == 6


def test_a_base_class_gives_the_same():
    assert Based.from_bytes(Based("x", ["a"]).packed) == Based("x", ["a"])
    assert Based("x").tags is not Based("x").tags
    assert schema_of(Based).version == "2.1.0"


def test_an_annotation_may_name_a_class_that_comes_later():
    assert Outer.from_bytes(Outer(Later(3)).packed) == Outer(Later(3))


def test_classes_in_functions_find_their_names():
    @packable
    class Inner:
        n: int

    @packable
    class Holder:
        inner: Inner
        many: list[Inner]

    assert Holder.from_bytes(Holder(Inner(1), [Inner(2)]).packed) == Holder(Inner(1), [Inner(2)])


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"], ids=["plain", "future"])
def test_classes_in_code_that_is_in_no_module(future):
    code = f"""{future}
from typing import ClassVar
import numpy as np
from numpy.typing import NDArray
from shoal.sample import packable
@packable
class Inner:
    x: NDArray[np.int8]
    limit: ClassVar[int] = 3
@packable
class Outer:
    inner: Inner
again = Outer.from_bytes(Outer(Inner(np.zeros(2, np.int8))).packed)
"""
    scope: dict[str, Any] = {"__name__": "nowhere"}
    exec(compile(code, "nowhere", "exec", dont_inherit=True), scope)
    assert scope["again"].inner.x.tolist() == [0, 0]


def test_options_of_a_frozen_class():
    @packable(version="1.2.0", frozen=True, kw_only=True)
    class Frozen:
        n: int
        x: NDArray

    one, two = Frozen(n=1, x=np.zeros(1)), Frozen(n=1, x=np.zeros(1))
    assert one == two
    assert hash(one) == hash(two)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.n = 2  # type: ignore[misc]
    assert Frozen.from_bytes(one.packed) == one
    assert schema_of(Frozen).version == "1.2.0"


def test_a_sample_that_may_change_has_no_hash():
    with pytest.raises(TypeError):
        hash(sample())


def test_an_equality_of_the_users_own_is_kept():
    @packable
    class Same:
        n: int

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    assert Same(1) == Same(2)


def test_former_names_are_read():
    @packable(aliases={"label": ("category", "cls")})
    class Renamed:
        label: str
        n: int = 3

    for old in ("label", "category", "cls"):
        assert Renamed.from_bytes(msgpack.packb({old: "cat"})) == Renamed("cat")
        assert Renamed.from_data({old: "cat"}) == Renamed("cat")
    assert Renamed.from_bytes(msgpack.packb({"cls": "old", "label": "new"})).label == "new"
    with pytest.raises(SchemaMismatchError, match=r"expected str, found nothing \(field label\)"):
        Renamed.from_bytes(msgpack.packb({"n": 1}))


def test_an_alias_of_no_field_is_refused():
    with pytest.raises(SchemaError, match="lable"):

        @packable(aliases={"lable": "category"})
        class _Typo:
            label: str


def test_unknown_fields_are_passed_over_and_absent_ones_defaulted():
    plain = msgpack.unpackb(sample().packed)
    del plain["confidence"]
    assert ImageSample.from_bytes(msgpack.packb({**plain, "new": [1, {"deep": b"x"}]})) == sample()


def test_from_data_takes_values_and_their_plain_forms():
    class Colour(enum.Enum):
        RED = "red"

    @packable
    class Taken:
        colour: Colour
        box: tuple[int, int]
        inner: ImageSample

    taken = Taken(Colour.RED, (1, 2), sample())
    plain = msgpack.unpackb(taken.packed)
    assert Taken.from_data(plain) == Taken.from_data(vars(taken)) == taken
    with pytest.raises(SchemaMismatchError, match=r"expected int, found str \(field box\[1\]\)"):
        Taken.from_data({**plain, "box": (1, "2")})
    with pytest.raises(SchemaMismatchError, match=r"\(field inner.label\)"):
        Taken.from_data({**plain, "inner": {**plain["inner"], "label": 3}})


def test_as_wds_has_a_key_and_the_bytes():
    one = sample()
    members = one.as_wds
    assert list(members) == ["__key__", "msgpack"]
    assert members["msgpack"] == one.packed
    assert members["__key__"] != one.as_wds["__key__"]


def test_keys_are_valid_uuids_in_the_order_they_were_made():
    keys = [unique_key() for _ in range(5000)]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert {(uuid.UUID(key).version, uuid.UUID(key).variant) for key in keys} == {(7, uuid.RFC_4122)}


def _keys(count: int) -> list[str]:
    return [unique_key() for _ in range(count)]


def test_keys_of_several_processes_and_threads_never_meet():
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        by_process = pool.map(_keys, [5000, 5000])
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.extend(_keys(2000))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [*by_process[0], *by_process[1], *found]
    assert len(set(everything)) == len(everything) == 18000


@dataclass(slots=True)
class Slotted:
    x: NDArray
    n: int = 2


class Structure(msgspec.Struct):
    x: NDArray
    tags: list[str] = []
    inner: ImageSample | None = None
    renamed: int = msgspec.field(default=0, name="newName")


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    x: NDArray
    n: int = pydantic.Field(default=3, description="how many")
    tags: list[str] = []
    by_alias: str = pydantic.Field(default="d", alias="byAlias")

    @pydantic.field_validator("n")
    @classmethod
    def _positive(cls, value: int) -> int:
        if value < 0:
            raise ValueError("negative")
        return value


@pytest.mark.parametrize(
    "made",
    [
        Slotted(np.arange(3)),
        Structure(np.arange(3), ["a"], ImageSample(np.zeros(1), "x"), 5),
        Model(x=np.arange(3), tags=["b"], byAlias="z"),
    ],
    ids=lambda made: type(made).__name__,
)
def test_other_classes_are_packed_and_read_as_they_are(made):
    cls = type(made)
    back = unpack(cls, pack(made))
    assert type(back) is cls
    assert pack(back) == pack(made)
    assert as_wds(made)["msgpack"] == pack(made)
    assert list(msgpack.unpackb(pack(made))) == list(schema_of(cls).names)
    if cls is not Slotted:  # @packable adds the methods to what is there, and leaves the constructor alone
        assert packable(cls) is cls
        assert cls.from_bytes(made.packed).packed == made.packed


def test_what_a_model_or_struct_says_of_its_fields_is_in_the_schema():
    assert schema_of(Model)["n"].doc == "how many"
    assert schema_of(Model)["n"].default is not None
    assert schema_of(Structure)["renamed"].aliases == ("newName",)
    assert schema_of(Structure)["tags"].default.json == "[]"
    assert "tags=[]" in repr(unpack(Model, msgpack.packb({"x": msgpack.unpackb(pack(Slotted(np.zeros(1))))["x"]})))


def test_validators_of_a_model_see_what_is_read():
    payload = msgpack.packb({**msgpack.unpackb(pack(Model(x=np.zeros(1)))), "n": -1})
    with pytest.raises(pydantic.ValidationError, match="negative"):
        unpack(Model, payload)


def test_an_existing_dataclass_gets_methods_and_an_equality_for_arrays():
    @packable
    @dataclass
    class Existing:
        x: NDArray

    assert Existing.from_bytes(Existing(np.zeros(3)).packed) == Existing(np.zeros(3))
    with pytest.raises(SchemaError, match="its constructor already"):
        packable(frozen=True)(Existing)


T = TypeVar("T", bound=int)


def test_names_of_the_methods_are_taken():
    with pytest.raises(SchemaError, match="one of a packable's own"):
        packable(type("Made", (), {"__annotations__": {"packed": int}}))


def test_a_plain_class_is_no_sample():
    with pytest.raises(SchemaError, match="@packable"):
        pack(object())


def test_generic_classes_work():
    @packable
    class Boxed(Generic[T]):
        n: T

    assert Boxed.from_bytes(Boxed(3).packed) == Boxed(3)


def test_samples_are_pickled_and_copied():
    one = ImageSample.from_bytes(sample().packed)
    for twin in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one), copy.copy(one)):
        assert twin == one


def test_threads_may_meet_a_class_together():
    @packable
    class Fresh:
        x: NDArray
        label: str

    errors: list[BaseException] = []
    gate = threading.Barrier(8)

    def work(number: int) -> None:
        try:
            gate.wait()
            for size in range(200):
                made = Fresh(np.full(size % 5 + number, number), str(number))
                assert Fresh.from_bytes(made.packed) == made
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []

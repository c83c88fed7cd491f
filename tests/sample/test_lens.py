"""Lenses: views, putters, composition, laws, paths over several lenses, and the fields that they read."""

from __future__ import annotations

import functools
import pickle
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.errors import FieldError, LensError, LensNotFoundError
from shoal.sample import (
    DictSample,
    Lens,
    LensNetwork,
    PackableSample,
    check_laws,
    default_network,
    keeps_fields,
    lens,
    packable,
    partial_mapper,
    partial_unpacker,
    structural_lens,
)


class Full(PackableSample):
    image: NDArray[np.float32]
    label: str
    score: float
    width: int = 0

    def loud(self) -> str:
        return self.label.upper() + str(self.width)


class Labelled(PackableSample):
    label: str
    score: float


class Named(PackableSample):
    name: str


class Length(PackableSample):
    length: int


def full(label: str = "cat", score: float = 0.5) -> Full:
    return Full(np.zeros(2, np.float32), label, score)


@lens(register=False)
def shorten(src: Full) -> Labelled:
    return Labelled(src.label, src.score)


@shorten.putter
def _shorten_put(view: Labelled, src: Full) -> Full:
    return Full(src.image, view.label, view.score, src.width)


@lens(register=False)
def to_name(src: Labelled) -> Named:
    return Named(src.label)


@to_name.putter
def _to_name_put(view: Named, src: Labelled) -> Labelled:
    return Labelled(view.name, src.score)


@lens(register=False)
def measure(src: Named) -> Length:
    return Length(len(src.name))


def test_a_lens_knows_its_types_and_is_called_either_way():
    assert (shorten.source_type, shorten.view_type) == (Full, Labelled)
    assert shorten(full()) == shorten.get(full()) == Labelled("cat", 0.5)
    assert shorten.put(Labelled("dog", 1.0), full()) == full("dog", 1.0)
    assert repr(shorten) == "<Lens shorten: Full -> Labelled>"


def test_a_lens_without_a_putter_says_so():
    with pytest.raises(LensError, match="measure has no putter"):
        measure.put(Length(3), Named("abc"))
    with pytest.raises(LensError, match="has a putter already"):
        shorten.putter(_shorten_put)


def test_types_in_a_function_are_found():
    class Here(PackableSample):
        n: int

    @lens(register=False)
    def look(src: Here) -> Named:
        return Named(str(src.n))

    assert look.source_type is Here


@pytest.mark.parametrize("function", [lambda src: src, len, shorten.get], ids=["lambda", "builtin", "generic"])
def test_functions_without_types_are_refused(function):
    with pytest.raises(LensError, match="says what it takes and gives"):
        Lens(function)


def test_an_unknown_name_is_told():
    def look(src: Nowhere) -> Named:  # noqa: F821
        return Named("")

    with pytest.raises(LensError, match=r"Nowhere|look"):
        lens(look)


def test_plain_samples_are_a_type_too():
    @lens(register=False)
    def read(src: dict[str, str]) -> Named:
        return Named(src["txt"])

    assert read.source_type is dict
    assert read({"txt": "x"}) == Named("x")
    assert read.reads() is None


def test_composition_both_ways():
    both, other = shorten | to_name, to_name @ shorten
    for one in (both, other):
        assert (one.source_type, one.view_type) == (Full, Named)
        assert one(full()) == Named("cat")
        assert one.put(Named("dog"), full()) == full("dog")
        assert one.reads() == {"label", "score"}
    assert not (both | measure).has_put


def test_lenses_that_do_not_meet_are_refused():
    with pytest.raises(LensError, match="do not follow"):
        _ = shorten | measure  # type: ignore[operator]


def test_identity():
    same = Lens.identity(Full)
    assert same(full()) == full()
    assert (same | shorten)(full()) == (shorten | Lens.identity(Labelled))(full())
    assert same.reads() is None
    check_laws(same, [full(), full("dog")]).require()


@given(st.lists(st.builds(full, st.text(max_size=5), st.floats()), min_size=1, max_size=4))
def test_good_lenses_keep_the_laws(samples):
    for one in (shorten, shorten | to_name, structural_lens(Full, Labelled)):
        report = check_laws(one, samples, views=[one(full("other", 9.0))])
        assert report.ok
        assert report.tried >= 5 * len(samples)


def test_a_lens_that_breaks_a_law_is_caught():
    broken = {
        "GetPut": Lens(shorten.get, lambda view, src: full(view.label, 0.0), source=Full, view=Labelled),
        "PutGet": Lens(shorten.get, lambda view, src: src, source=Full, view=Labelled),
        "PutPut": Lens(
            to_name.get,
            lambda view, src: Labelled(view.name, src.score + (view.name != src.label)),
            source=Labelled,
            view=Named,
        ),
    }
    for law, one in broken.items():
        samples = [Labelled("a", 1.0), Labelled("b", 2.0)] if law == "PutPut" else [full("a"), full("b")]
        report = check_laws(one, samples)
        assert law in {found.law for found in report.broken}
        with pytest.raises(LensError, match="breaks"):
            report.require()


def test_nothing_to_check_is_an_error():
    with pytest.raises(LensError):
        check_laws(shorten, [])
    with pytest.raises(LensError):
        check_laws(measure, [Named("x")])


def test_a_structural_lens_copies_what_fits():
    one = structural_lens(Full, Labelled)
    assert one(full()) == Labelled("cat", 0.5)
    assert one.put(Labelled("dog", 1.0), full()) == full("dog", 1.0)
    assert one.reads() == {"label", "score"}
    with pytest.raises(LensError, match=r"Full cannot be seen as Named: .*\(field name\)"):
        structural_lens(Full, Named)


def network(*lenses: Lens) -> LensNetwork:
    made = LensNetwork()
    for one in lenses:
        made.register(one)
    return made


def test_direct_and_several_hops():
    known = network(shorten, to_name, measure)
    assert known.find(Full, Labelled) is shorten
    assert known.find(Full, Length)(full()) == Length(3)
    assert known.find(Full, Named).put(Named("dog"), full()) == full("dog")
    assert known.find(Full, Full)(full()) == full()


def test_the_shortest_way_wins():
    direct = Lens(lambda src: Named("direct"), source=Full, view=Named)
    assert network(shorten, to_name, direct).find(Full, Named) is direct


def test_equal_ways_are_refused_with_both():
    class Other(PackableSample):
        n: int

    there = Lens(lambda src: Other(1), source=Full, view=Other)
    there.name = "there"
    back = Lens(lambda src: Named("x"), source=Other, view=Named)
    back.name = "back"
    with pytest.raises(LensError, match=r"several ways .*shorten \| to_name; there \| back"):
        network(shorten, to_name, there, back).find(Full, Named)


def test_a_missing_lens_lists_the_registered():
    with pytest.raises(
        LensNotFoundError, match=r"from Length to Full: found registered: <Lens shorten: Full -> Labelled>"
    ):
        network(shorten).find(Length, Full)
    with pytest.raises(LookupError, match="none"):
        LensNetwork().find(Full, Labelled)
    with pytest.raises(LensNotFoundError, match="structural_lens"):  # and not: open the data as what it is opened as
        network(shorten).find(Full, Length)


def test_a_network_shows_its_lenses():
    assert repr(network(shorten, to_name)) == "<LensNetwork of 2: shorten, to_name>"
    assert repr(LensNetwork()) == "<LensNetwork of 0: no lenses>"


def test_a_name_in_common_is_no_lens():
    with pytest.raises(LensNotFoundError):
        LensNetwork().find(Full, Labelled)


def test_a_second_lens_between_two_types_is_refused():
    known = network(shorten)
    other = Lens(lambda src: Labelled("", 0.0), source=Full, view=Labelled)
    with pytest.raises(LensError, match="already"):
        known.register(other)
    known.register(other, replace=True)
    assert known.find(Full, Labelled) is other


def test_the_same_function_defined_again_takes_its_place():
    def define() -> Lens[Full, Named]:
        def again(src: Full) -> Named:
            return Named(src.label)

        return Lens(again)

    known = network(define())
    second = known.register(define())
    assert known.lenses() == (second,)


def test_subclasses_use_the_lenses_of_their_bases_and_their_own_first():
    class Wide(Full):
        pass

    known = network(shorten)
    assert known.find(Wide, Labelled) is shorten
    own = known.register(Lens(lambda src: Labelled("own", 0.0), source=Wide, view=Labelled))
    assert known.find(Wide, Labelled) is own
    assert known.find(Wide, Full)(full()) == full()


def test_a_dict_sample_is_seen_as_any_class():
    seen = LensNetwork().find(DictSample, Labelled)(DictSample(label="cat", score=1, extra=2))
    assert seen == Labelled("cat", 1.0)


def test_the_decorator_registers_in_the_default_network():
    class Only(PackableSample):
        n: int

    @lens
    def only(src: Only) -> Named:
        return Named(str(src.n))

    assert default_network().find(Only, Named) is only
    assert only in default_network().lenses()


def test_cycles_end():
    back = Lens(lambda src: full(src.label), source=Labelled, view=Full)
    with pytest.raises(LensNotFoundError):
        network(shorten, back).find(Full, Length)


def reads(function) -> frozenset[str] | None:
    return Lens(function, source=Full, view=Named).reads()


def _branches(src: Full) -> Named:
    if src.width is None or src.score > 3:
        return Named(src.label)
    return Named("")


def _closure(src: Full) -> Named:
    return Named(",".join(str(x + src.score) for x in range(3)))


def _calls(src: Full) -> Named:
    return Named(src.label.upper()[: src.width])


def _mixed(src: Full) -> Named:
    a = "x"
    b = src.label
    return Named(a + b + str(src.image.mean()) + f"{src.score:.2f}")


def _passes_on(src: Full) -> Named:
    return Named(repr(src))


def _method(src: Full) -> Named:
    return Named(src.loud())


def _renamed(src: Full) -> Named:
    other = src
    return Named(other.label)


def _overwritten(src: Full) -> Named:
    src = Full(src.image, "x", 1.0)
    return Named(src.label)


def _dynamic(src: Full) -> Named:
    return Named(getattr(src, "label"))  # noqa: B009


def _locals(src: Full) -> Named:
    return Named(str(locals()))


def _unused(src: Full) -> Named:
    return Named("constant")


def _nested(src: Full) -> Named:
    def inner(x: int) -> str:
        return src.label * x

    return Named(inner(src.width))


def _comprehends(src: Full) -> Named:
    return Named("".join([src.label for _ in range(3)] + [x for x in "abc" if x > src.label[: src.width]]))


def _in_a_class(src: Full) -> Named:
    class Inner:
        label = src.label

    return Named(Inner.label)


def _changes(src: Full) -> Named:
    src.width += 1
    return Named(src.label)


def _deletes(src: Full) -> Named:
    label = src.label
    del src
    return Named(label)


def _matches(src: Full) -> Named:
    match src:
        case Full(label=label):
            return Named(label)
    return Named("")


def _leaks(src: Full) -> Named:
    return Named("".join(map(str, [src for _ in range(2)])))


@pytest.mark.parametrize(
    "function, fields",
    [
        (_branches, {"width", "score", "label"}),
        (_closure, {"score"}),
        (_calls, {"label", "width"}),
        (_mixed, {"label", "image", "score"}),
        (_unused, set()),
        (_nested, {"label", "width"}),
        (_comprehends, {"label", "width"}),
        (_in_a_class, {"label"}),
        (_changes, None),
        (_deletes, None),
        (_matches, None),
        (lambda src: Named(src.label), {"label"}),
        (_passes_on, None),
        (_method, None),
        (_renamed, None),
        (_overwritten, None),
        (_dynamic, None),
        (_locals, None),
        (_leaks, None),
        (functools.partial(_calls), None),
        (str, None),
    ],
)
def test_the_fields_that_a_lens_reads(function, fields):
    assert reads(function) == fields


def test_only_the_fields_that_are_read_are_decoded():
    payload = full("cat", 0.25).packed
    read = partial_unpacker(Full, shorten.reads())
    assert shorten(read(payload)) == Labelled("cat", 0.25)
    assert not hasattr(read(payload), "image")
    # The image's bytes are not looked at.
    damaged = payload.replace(b"\x93NUMPY", b"\x93NUMPX")
    assert shorten(read(damaged)) == Labelled("cat", 0.25)
    with pytest.raises(FieldError):
        partial_unpacker(Full, ["nothing"])
    for writable in (False, True):
        image = partial_unpacker(Full, ["image"], writable=writable)(payload).image
        assert image.flags.writeable is writable


def test_a_class_that_computes_is_read_whole():
    class Computed(PackableSample):
        a: int
        b: int

        def __post_init__(self) -> None:
            self.a += self.b

    assert partial_unpacker(Computed, ["a"]) is None
    assert partial_mapper(Computed, ["a"]) is None


def test_a_lens_of_several_reads_what_its_first_reads():
    assert (shorten | to_name | measure).reads() == {"label", "score"}
    assert (measure @ to_name @ shorten).reads() == {"label", "score"}
    assert (Lens.identity(Full) | shorten).reads() == {"label", "score"}
    assert network(shorten, to_name, measure).find(Full, Length).reads() == {"label", "score"}
    assert structural_lens(Full, Labelled).reads() == {"label", "score"}
    assert Lens.identity(Full).reads() is None


@dataclass(slots=True)
class Slotted:
    a: int


class Struct(msgspec.Struct):
    a: int


class Loud(msgspec.Struct):
    a: int

    def __post_init__(self) -> None:
        self.a += 1


@dataclass
class OwnConstructor:
    a: int

    def __init__(self, a: int) -> None:
        self.a = a + 1


@pytest.mark.parametrize(
    "kind, keeps", [(Full, True), (Slotted, True), (Struct, True), (Loud, False), (OwnConstructor, False)]
)
def test_whether_a_class_only_keeps_its_fields(kind, keeps):
    assert keeps_fields(kind) is keeps


def test_a_subclass_keeps_its_fields_as_its_base_does():
    class Below(Full):
        pass

    @packable
    class Computing(Full):
        def __post_init__(self) -> None:
            self.width = 3

    assert keeps_fields(Below)
    assert not keeps_fields(Computing)


@lens(register=False)
def loud_name(src: Full) -> Named:
    return Named(src.label.upper())


def _double(src: Labelled) -> Labelled:
    return Labelled(src.label * 2, src.score)


@pytest.mark.parametrize(
    "made",
    [
        loud_name,
        shorten | to_name | measure,
        Lens.identity(Full),
        structural_lens(Full, Labelled),
        shorten | Lens(_double),
        network(shorten, to_name).find(Full, Named),
    ],
    ids=["decorated", "composed", "identity", "structural", "of a function", "found"],
)
def test_a_lens_is_pickled(made):
    back = pickle.loads(pickle.dumps(made))
    assert back(full("cat")) == made(full("cat"))
    assert (back.name, back.source_type, back.view_type) == (made.name, made.source_type, made.view_type)
    assert back.reads() == made.reads()
    assert back.has_put == made.has_put


def test_the_way_from_data_without_a_class_is_pickled():
    way = LensNetwork().find(DictSample, Named)
    assert pickle.loads(pickle.dumps(way))(DictSample(name="x")) == Named("x")


def test_a_lens_of_a_module_is_the_same_one_after_pickling():
    assert pickle.loads(pickle.dumps(loud_name)) is loud_name


def test_a_lens_within_a_function_is_refused_by_pickle():
    @lens(register=False)
    def local(src: Full) -> Named:
        return Named(src.label)

    with pytest.raises((pickle.PicklingError, AttributeError), match="local"):
        pickle.dumps(local)

"""Lenses that tests store: they have to be in a module that can be imported."""

from __future__ import annotations

import shoal
from shoal.sample import Lens, LensNetwork

NETWORK = LensNetwork()


@shoal.packable
class Full:
    label: str
    score: float


@shoal.packable
class Label:
    label: str


@shoal.packable
class Length:
    letters: int


@shoal.lens(network=NETWORK)
def to_label(full: Full) -> Label:
    return Label(full.label)


@to_label.putter
def _put_label(label: Label, full: Full) -> Full:
    return Full(label.label, full.score)


@shoal.lens(network=NETWORK)
def to_length(label: Label) -> Length:
    return Length(len(label.label) * 2)  # not what a copy of fields would give


@shoal.lens(network=NETWORK)
def other_way(full: Full) -> Length:
    return Length(int(full.score))


renamed = Lens(lambda full: Label(full.label), source=Full, view=Label)
not_a_lens = Full

"""Forms: the named ways to give an image, a sound or a video, such as ``"rgb8"``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from shoal.codec._audio import AUDIO_FORMS, audio_decoder
from shoal.codec._codec import DecoderMaker, Kind
from shoal.codec._image_decode import image_decoder
from shoal.codec._image_spec import IMAGE_FORMS, ImageSpec
from shoal.codec._video import VIDEO_FORMS, video_decoder

__all__ = ["FORMS", "Form"]


@dataclass(frozen=True, slots=True)
class Form:
    """One named way to decode all payloads of a kind."""

    name: str
    kind: Kind
    decoder: DecoderMaker


def _forms() -> Iterator[Form]:
    for name in IMAGE_FORMS:
        yield Form(name, "image", partial(image_decoder, ImageSpec(name)))
    for audio_form in AUDIO_FORMS:
        yield Form(audio_form, "audio", partial(audio_decoder, audio_form))
    for video_form in VIDEO_FORMS:
        yield Form(video_form, "video", partial(video_decoder, video_form))


FORMS = {form.name: form for form in _forms()}

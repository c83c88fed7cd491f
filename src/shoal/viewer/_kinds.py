"""The kind of a field, by its name or its first bytes: image, audio, text, array and so on."""

from __future__ import annotations

from typing import Literal, TypeAlias

from shoal.codec._codec import Buffer
from shoal.codec._registry import codec_for

__all__ = ["Kind", "kind_of", "media_type", "sniffed"]

Kind: TypeAlias = Literal["image", "audio", "video", "text", "svg", "value", "array", "pickle", "bytes"]
_TEXTS = frozenset({"text", "md", "csv", "tsv", "xml", "yaml", "yml", "toml", "log", "srt", "vtt", "py", "css", "js"})
_MEDIA = {
    "wav": "audio/wav",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "ogg": "audio/ogg",
    "opus": "audio/ogg",
    "m4a": "audio/mp4",
    "aac": "audio/aac",
    "mp4": "video/mp4",
    "m4v": "video/mp4",
    "mov": "video/mp4",
    "webm": "video/webm",
    "mkv": "video/webm",
    "ogv": "video/ogg",
}
_OTHER_SOUND = frozenset({"m4a", "aac"})
_MAGIC: tuple[tuple[int, bytes, Kind], ...] = (
    (0, b"\xff\xd8\xff", "image"),
    (0, b"\x89PNG\r\n\x1a\n", "image"),
    (0, b"GIF8", "image"),
    (8, b"WEBP", "image"),
    (0, b"fLaC", "audio"),
    (8, b"WAVE", "audio"),
    (0, b"OggS", "audio"),
    (0, b"ID3", "audio"),
    (4, b"ftyp", "video"),
    (0, b"\x1aE\xdf\xa3", "video"),
)
_SOUNDS = {b"fLaC": "audio/flac", b"RIFF": "audio/wav", b"OggS": "audio/ogg", b"ID3": "audio/mpeg"}


def kind_of(field: str) -> Kind:
    """What a field's name says it is.

    Examples:
        >>> kind_of("jpg"), kind_of("meta.json"), kind_of("seg.npy"), kind_of("a.svg"), kind_of("bin")
        ('image', 'value', 'array', 'svg', 'bytes')
    """
    ending = field.lower().rpartition(".")[2]
    if ending == "svg":
        return "svg"
    codec = codec_for(field)
    if codec is None or (ending == "gz" and codec.kind != "data"):
        return "audio" if ending in _OTHER_SOUND else "text" if ending in _TEXTS else "bytes"
    if codec.kind != "data":
        return codec.kind
    if codec.name in ("text", "pickle"):
        return "text" if codec.name == "text" else "pickle"
    if codec.name in ("npy", "npz", "tenbin"):
        return "array"
    return "value" if codec.automatic else "bytes"


def sniffed(data: Buffer) -> Kind:
    """What bytes without a name are.

    Examples:
        >>> sniffed(b"GIF89a..."), sniffed(b"RIFF....WAVEfmt "), sniffed(b"?")
        ('image', 'audio', 'bytes')
    """
    head = bytes(data[:16])
    for at, magic, kind in _MAGIC:
        if head[at : at + len(magic)] == magic:
            return kind
    return "bytes"


def media_type(field: str, head: Buffer) -> str | None:
    """The type by which a browser plays a sound or a video; None for all that is not one.

    Nothing else is ever named to a browser, so no bytes of a dataset are taken for a page or a script.

    Examples:
        >>> media_type("clip.MP4", b""), media_type("html", b"<script>"), media_type("sound", b"fLaC")
        ('video/mp4', None, 'audio/flac')
    """
    named = _MEDIA.get(field.lower().rpartition(".")[2])
    if named is not None:
        return named
    kind = sniffed(head)
    if kind == "audio":
        return next((kind for magic, kind in _SOUNDS.items() if bytes(head[: len(magic)]) == magic), None)
    return "video/mp4" if kind == "video" else None

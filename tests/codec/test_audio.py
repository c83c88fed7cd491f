"""Sound: exact where the format is, deterministic everywhere."""

from __future__ import annotations

import io
import struct

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.codec import Audio, decode, decode_spec, encode
from shoal.codec._audio_video import without_serial
from shoal.errors import DecodeError, EncodeError

RATE = 16000
TONE = (np.sin(np.arange(RATE) / 20) * 0.5).astype(np.float32)
STEREO = np.stack([TONE, TONE[::-1]], axis=1)
EXTENSIONS = ["wav", "flac", "mp3", "ogg", "opus"]
AUDIO, AUDIO16 = decode_spec("audio"), decode_spec("audio16")
sounds = hnp.arrays(np.int16, st.tuples(st.integers(1, 300), st.integers(1, 3)))


@pytest.mark.parametrize("extension", ["wav", "flac"])
@given(samples=sounds)
def test_sixteen_bits_come_back(extension, samples):
    decoded = decode(extension, encode(extension, Audio(samples, RATE)), AUDIO16)
    assert decoded.sample_rate == RATE
    assert np.array_equal(decoded.samples, samples)


@given(
    samples=hnp.arrays(
        np.float32, st.tuples(st.integers(1, 300), st.integers(1, 3)), elements=st.floats(-1, 1, width=32)
    )
)
def test_float_wav_comes_back(samples):
    assert np.array_equal(decode("wav", encode("wav", (samples, RATE)), AUDIO).samples, samples)


@pytest.mark.parametrize("extension, error", [("wav", 0), ("flac", 1e-6), ("mp3", 0.1), ("ogg", 0.1)])
@pytest.mark.parametrize("samples", [TONE, STEREO], ids=["mono", "stereo"])
def test_sound_comes_back(extension, error, samples):
    decoded = decode(f"x.{extension}", memoryview(encode(extension, Audio(samples, RATE))), AUDIO)
    assert decoded.samples.dtype == np.float32
    assert decoded.samples.shape == (RATE, samples.size // RATE)
    assert np.abs(decoded.samples - samples.reshape(RATE, -1)).max() <= error


def test_opus_comes_back_as_long_as_it_was():
    samples, rate = decode("opus", encode("opus", Audio(TONE, RATE)), AUDIO)
    assert (samples.shape, rate) == ((RATE, 1), RATE)
    assert abs(np.abs(samples).mean() - np.abs(TONE).mean()) < 0.02


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_decoding_is_soundfiles(extension):
    data = encode(extension, Audio(STEREO, RATE))
    samples, rate = soundfile.read(io.BytesIO(data), dtype="float32")
    decoded = decode(extension, data, AUDIO)
    assert decoded.sample_rate == rate
    assert np.array_equal(decoded.samples, samples)


@pytest.mark.parametrize("extension", EXTENSIONS)
@pytest.mark.parametrize("dtype", [np.int16, np.float32])
def test_the_same_sound_gives_the_same_bytes(extension, dtype):
    audio = Audio((TONE * (32767 if dtype == np.int16 else 1)).astype(dtype), RATE)
    assert len({encode(extension, audio) for _ in range(3)}) == 1


def test_a_float_wav_has_no_time_in_it():
    data = encode("wav", Audio(TONE, RATE))
    peak = data.index(b"PEAK")
    assert struct.unpack_from("<4sIII", data, peak)[2:] == (1, 0)  # version, time


def test_an_ogg_has_no_random_serial_and_right_checksums():
    data = encode("ogg", Audio(TONE, RATE))
    assert data.startswith(b"OggS")
    assert data[14:18] == bytes(4)
    assert without_serial(data) == data
    stream = io.BytesIO()
    soundfile.write(stream, TONE, RATE, format="OGG")
    page_size = 27 + stream.getvalue()[26] + sum(stream.getvalue()[27 : 27 + stream.getvalue()[26]])
    zeroed = bytearray(stream.getvalue()[:page_size])
    zeroed[14:18] = zeroed[22:26] = bytes(4)
    assert int.from_bytes(data[22:26], "little") == slow_crc(zeroed)


def slow_crc(data):
    """Ogg's checksum from its definition, a bit at a time."""
    crc = 0
    for byte in data:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ (0x04C11DB7 if crc >> 31 else 0)) & 0xFFFFFFFF
    return crc


def test_torchaudio_gives_channels_first_and_takes_them():
    data = encode("wav", Audio(STEREO, RATE))
    samples, rate = decode("wav", data, decode_spec("torchaudio"))
    assert isinstance(samples, torch.Tensor)
    assert np.array_equal(samples.numpy(), STEREO.T)
    assert encode("wav", (samples, rate)) == data


def test_true_leaves_sound_as_bytes():
    data = encode("flac", Audio(TONE, RATE))
    assert decode("flac", data, decode_spec(True)) is data


@pytest.mark.parametrize(
    "value", [TONE, "path.wav", None, (TONE,), ("x", RATE), (np.zeros((2, 2, 2), np.float32), RATE), (TONE > 0, RATE)]
)
def test_what_is_no_sound_is_refused(value):
    with pytest.raises(EncodeError, match="field wav"):
        encode("wav", value)


@pytest.mark.parametrize("extension", EXTENSIONS)
@pytest.mark.parametrize("data", [b"", b"not a sound file at all"])
def test_what_is_no_sound_file_is_refused(extension, data):
    with pytest.raises(DecodeError, match="a sound file"):
        decode(extension, data, AUDIO)


def test_a_sound_longer_than_allowed_is_refused():
    data = encode("flac", Audio(TONE, RATE))
    with pytest.raises(DecodeError, match="too long"):
        decode("flac", data, decode_spec("audio", max_bytes=4 * RATE - 1))
    assert len(decode("flac", data, decode_spec("audio", max_bytes=4 * RATE)).samples) == RATE

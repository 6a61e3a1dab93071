"""``netdoctor log`` of what somebody packed, and of what is no log at all."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import lzma
import pathlib
import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, strategies

from netdoctor.cli import log
from netdoctor.cli.options import Options
from netdoctor.process import unpack

BAD = b"node01:100:130 [0] misc/socket.cc:1 NCCL WARN Call to bind failed: Address already in use\n"
WAYS = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}
NO_ZSTD = importlib.util.find_spec("compression") is None


def blocks(came: Iterable[bytes]) -> list[bytes | None]:
    rest = iter(came)
    first = unpack.at_least(next(rest, b""), read := lambda: next(rest, b""))
    return list(unpack.unpacked(first, read))


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("pack", WAYS.values(), ids=list(WAYS))
def test_a_packed_stream_is_what_it_was(pack: Callable[[bytes], bytes], size: int) -> None:
    whole = pack(BAD) + pack(b"") + pack(BAD * 3)  # several members after each other
    assert b"".join(filter(None, blocks(cut(whole, size)))) == BAD * 4
    assert None not in blocks(cut(whole, size))
    assert blocks(cut(whole + b"garbage", size)) == blocks(cut(whole, size))
    assert b"".join(filter(None, blocks(cut(pack(BAD) + b"\0" * 8 + pack(BAD), size)))) == BAD * 2


@pytest.mark.parametrize("pack", WAYS.values(), ids=list(WAYS))
def test_what_ends_early_says_so(pack: Callable[[bytes], bytes]) -> None:
    whole = pack(BAD * 9)
    assert [blocks([whole[:-n]])[-1] for n in range(1, len(whole) - unpack.LONGEST)] == [None] * (
        len(whole) - unpack.LONGEST - 1
    )
    assert blocks([pack(BAD) + whole[:-1]])[-1] is None


@pytest.mark.parametrize("pack", WAYS.values(), ids=list(WAYS))
def test_a_bomb_comes_out_in_blocks(pack: Callable[[bytes], bytes]) -> None:
    out = blocks([pack(b"x" * (5 << 20))])
    assert max(len(one or b"") for one in out) <= unpack.BLOCK and sum(len(one or b"") for one in out) == 5 << 20


@pytest.mark.slow
def test_what_asks_for_much_memory_is_refused() -> None:
    huge = lzma.compress(BAD, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}])
    with pytest.raises(OSError, match="not a sound xz file: Memory usage limit exceeded"):
        blocks([huge])


@given(
    strategies.sampled_from([pack(BAD) for pack in WAYS.values()]), strategies.binary(max_size=40), strategies.integers(0, 60)
)
def test_what_is_broken_is_an_error_of_ours(whole: bytes, dirt: bytes, at: int) -> None:
    data = whole[:at] + dirt + whole[at + len(dirt) :]
    try:
        assert all(isinstance(one, bytes | None) for one in blocks([data]))
    except OSError as error:
        assert "not a sound" in str(error)


@pytest.mark.parametrize("text", [b"BZh9 is no bzip2\n", b"\n", b"a", b"(\xb5", b"\xfd7"])
def test_what_only_begins_so_is_text(text: bytes) -> None:
    assert blocks([text]) == [text]


@pytest.mark.skipif(not NO_ZSTD, reason="this Python has zstd")
def test_zstd_is_told_how(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.zst").write_bytes(b"\x28\xb5\x2f\xfd\x04\x00\x01\x00\x00\x99\xe9\xd8\x51")
    assert log.run(Options(), [str(tmp_path / "x.zst")]) == 2
    assert "packed by zstd, which this Python does not know: zstd -dc FILE | netdoctor log -" in capsys.readouterr().err


@pytest.mark.parametrize("pack", WAYS.values(), ids=list(WAYS))
def test_its_cause_is_found(pack: Callable[[bytes], bytes], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.out").write_bytes(pack(BAD))
    assert log.run(Options(), [str(tmp_path / "job.out")]) == 3
    (tmp_path / "job.out").write_bytes(pack(b"training finished\n")[:-1])
    assert log.run(Options(), [str(tmp_path / "job.out")]) == 4
    assert "job.out ends early" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("job.sbatch", b"#!/bin/bash\n#SBATCH -N 4\n", "a job script: `netdoctor env --file"),
        ("x.log", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a binary file (a picture)"),
        ("core", b"\x7fELF\x02\x01\x01", "a binary file (a program or a library)"),
        ("step_100.pt", b"PK\x03\x04\0\0", "a binary file (zip, as torch.save and numpy.savez write it)"),
    ],
)
def test_what_is_no_log_is_told_as_what_it_is(
    name: str, content: bytes, says: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, beside = tmp_path / name, tmp_path / "job.out"
    file.write_bytes(content)
    assert log.run(Options(), [str(file)]) == 2
    assert f"netdoctor: {file}: {says}" in (said := capsys.readouterr().err) and "it is no log" in said
    beside.write_bytes(BAD)
    assert log.run(Options(), [str(file), str(beside)]) == 3
    said = capsys.readouterr()
    assert f"netdoctor: {file}: {says}" in said.err and "1 line," in said.out
    assert log.run(Options(), [str(tmp_path)]) == 3
    assert "1 line," in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"\0" * 512 + BAD, b"#!/bin/bash\nsrun python train.py\n" + BAD])
def test_a_log_that_begins_oddly_is_read(content: bytes, tmp_path: pathlib.Path) -> None:
    """Cut short while it was written, or behind the script that it is of."""
    (tmp_path / "job.out").write_bytes(content)
    assert log.run(Options(), [str(tmp_path / "job.out")]) == 3


@pytest.mark.parametrize("name", ["x.log", "x.bin"])
def test_a_binary_of_no_known_kind_is_told_as_one(
    name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = random.Random(1)
    (tmp_path / name).write_bytes(b"\xfe" + drawn.randbytes(5000))
    assert log.run(Options(), [str(tmp_path / name)]) == 2
    assert capsys.readouterr().err.endswith(f"{name}: a binary file; it is no log\n")


@pytest.mark.parametrize(
    "text",
    [
        "Шаг 7: потеря 2.1\n" * 90,
        "\x1b[1;32mINFO\x1b[0m step 7\b\b\r 8\a\n" * 90,
        "ステップ 7\n" * 90,
    ],
)
@pytest.mark.parametrize("coding", ["utf-8", "utf-16", "shift_jis", "cp1251"])
def test_a_text_of_any_coding_is_no_binary(text: str, coding: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "x.log").write_bytes(text.encode(coding, "ignore"))
    assert log.run(Options(), [str(tmp_path / "x.log")]) == 4

"""Planted secrets never get past the door."""

from __future__ import annotations

import json

import pytest

from netdoctor.credentials import GONE, scrub
from netdoctor.host.base import RecordingHost, ReplayHost
from netdoctor.host.redact import Redactor
from netdoctor.nccl.integers import integer as nccl_integer
from netdoctor.variables.catalogue import accepts

SECRET = "hunter2-Zq9"


@pytest.mark.parametrize(
    "text",
    [
        f"https://user:{SECRET}@pypi.example/simple",
        f"--token={SECRET} --x",
        f"AUTH_TOKEN: {SECRET}",
        f'api_key="{SECRET}"',
        f"password = '{SECRET} with spaces'",
        f"Authorization: Bearer {SECRET}abc",
        "hf_abcdefghijklmnopqrstuvwx",
        "ghp_abcdefghijklmnop1234567890",
        "AKIAABCDEFGHIJKLMNOP",
    ],
)
def test_scrub(text: str) -> None:
    got = scrub(text)
    assert GONE in got
    for part in (SECRET, "hf_abc", "ghp_abc", "AKIAABC"):
        assert part not in got


@pytest.mark.parametrize(
    "text",
    [
        "NCCL INFO Bootstrap: Using eth0:10.0.0.2<0>",
        "NCCL_IB_HCA set by environment to mlx5_0",
        "https://docs.nvidia.com/deeplearning/nccl",
        "0 keys in key table 7",
        "/usr/lib/x86_64-linux-gnu/libnccl.so.2",
        # what is said of a file, whose name is no credential's
        "netdoctor: /root/token: Permission denied",
        "token: No such file or directory",
        "-o /nope/token: cannot be written",
        "'/run/secret': Is a directory",
        "netdoctor: /etc/passwd: not JSON",
        "./api_token.d: it is no folder",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert scrub(text) == text


@pytest.mark.parametrize(
    "text",
    [
        f"/run/token: {SECRET}",
        f"secret/db/password: {SECRET} rotated",
        "/run/token: isabel said so",
        "/run/token:cannot be",
        "/run/token=cannot be",
        "password: not telling",
        "https://h/token: the wizard",
        "/run/token: no",
        "/run/password: Success",
        f'/run/token: "not {SECRET}"',
    ],
)
def test_a_value_behind_the_name_of_a_file_goes(text: str) -> None:
    assert SECRET not in scrub(text) and (scrub(text) != text or text.endswith(": no"))
    assert scrub(scrub(text)) == scrub(text)


def test_blanks_around_a_name_make_no_secret_of_its_value() -> None:
    assert Redactor(accepts).value("NCCL_DEBUG ", " INFO") == " INFO"
    assert Redactor(accepts).value(" NCCL_AUTH_TOKEN ", SECRET) == GONE


def test_the_environment_is_kept_by_allow_list() -> None:
    host = RecordingHost(
        ReplayHost(
            {
                "env:": {
                    "AWS_SECRET_ACCESS_KEY": SECRET,
                    "MY_APP": SECRET,
                    "NCCL_AUTH_TOKEN": SECRET,
                    "NCCL_DEBUG": "INFO",
                    "MASTER_ADDR": f"tcp://me:{SECRET}@node1",
                },
                "file:/proc/cmdline": f"root=/dev/x iommu=pt luks.key={SECRET} quiet secret_{SECRET}",
                "file:/etc/nccl.conf": f"NCCL_DEBUG=WARN\n# {SECRET}\n{SECRET}\nNCCL_X_PASSWORD={SECRET}",
                "ask:nvml": {"driver": "580", "note": f"https://a:{SECRET}@b/"},
            }
        ),
        Redactor(accepts),
    )
    for question in ("env:", "file:/proc/cmdline", "file:/etc/nccl.conf", "ask:nvml"):
        host.ask(question)
    kept = json.dumps(host.answers)
    assert SECRET not in kept
    assert host.answers["env:"]["NCCL_DEBUG"] == "INFO"  # type: ignore[index, call-overload]
    assert "iommu=pt" in str(host.answers["file:/proc/cmdline"])
    assert str(host.answers["file:/etc/nccl.conf"]).startswith("NCCL_DEBUG=WARN\n#\n")


def test_of_an_account_only_what_is_needed_is_kept() -> None:
    text = f"root:x:0:0:root:/root:/bin/bash\nada:{SECRET}:1000:100:Ada L,+1 555:/home/ada:/bin/zsh\nrubbish\n"
    kept = Redactor(accepts)("file:/etc/passwd", text)
    assert kept == "root::0:0::/root:\nada::1000:100::/home/ada:\n"
    assert Redactor(accepts)("file:/etc/passwd", kept) == kept


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("1   # off until the switch is back, see ticket", "1 <redacted>"),
        ("1" + " " * 40, "1 <redacted>"),
        ("0x1F # " + "a" * 40, "0x1F <redacted>"),
        ("1" + "a" * 40, "<redacted>"),
        ("# 1" + " " * 40, "<redacted>"),
    ],
)
def test_a_number_counts_whatever_stands_behind_it(value: str, kept: str) -> None:
    got = Redactor(lambda _: "flag").value("NCCL_IB_DISABLE", value)
    assert got == kept and (got == GONE or nccl_integer(got) == nccl_integer(value))

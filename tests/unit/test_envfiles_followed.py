"""Scripts and Dockerfiles are followed: branches, functions, stages."""

from __future__ import annotations

import pytest

from netdoctor.variables.files import FileKind, parse
from tests.unit.test_envfiles import Seen, problems, seen, unread


@pytest.mark.parametrize(
    ("script", "conditional"),
    [
        ("f() { export NCCL_A=1; }\n[ $1 ] && f\nsrun a", True),
        ("f() { export NCCL_A=1; }\nif x; then f; fi\nsrun a", True),
        ("f() { export NCCL_A=1; }\nf\nsrun a", False),
        (': "${NCCL_A:=1}"; export NCCL_A; srun a', True),
        ("case $1 in (b) x;; esac\nexport NCCL_A=1\nsrun a", False),
    ],
)
def test_what_may_not_be_set(script: str, conditional: bool) -> None:
    assert [one.conditional for one in parse("job.sh", script).assignments] == [conditional]


@pytest.mark.parametrize("text", ["`NCCL_A=1$`", "((", "((a) (b))", "$'", "<(", "(" * 500 + "NCCL_A=1" + ")" * 500])
def test_half_a_word_does_not_raise(text: str) -> None:
    parse("job.sh", text)


@pytest.mark.slow
def test_functions_that_call_each_other_end() -> None:
    script = "".join(f"f{i}() {{ f{i + 1}; f{i + 1}; f{i + 1}; }}\n" for i in range(40)) + "f0\nexport NCCL_A=1\nsrun a\n"
    assert parse("job.sh", script).unread


DOCKERFILE = """\
# escape=\\
ARG TAG=1
FROM x AS debug
ENV NCCL_P2P_DISABLE=1
FROM x:$TAG AS base
ENV NCCL_A=1 \\
# why

    NCCL_B=2
ENV NCCL_C 3 4
FROM --platform=x base
ARG NCCL_D=1
RUN export NCCL_E=1 && ./selftest
RUN <<EOF
export NCCL_F=1
EOF
ENV NCCL_A=5 NCCL_G=$TAG
HEALTHCHECK CMD NCCL_H=1 ./check
CMD ["bash", "-c", "NCCL_I=1 torchrun 't.py'"]
"""


def test_a_dockerfile_is_its_last_stage() -> None:
    parsed = parse("Dockerfile", DOCKERFILE)
    assert parsed.kind is FileKind.DOCKER
    expected: Seen = [("NCCL_A", "5", 17), ("NCCL_B", "2", 9), ("NCCL_C", "3 4", 10), ("NCCL_G", None, 17), ("NCCL_I", "1", 19)]
    assert seen(parsed) == expected
    assert problems(parsed) == [] and unread(parsed) == []
    assert unread(parse("x.dockerfile", "FROM x\nRUN echo export NCCL_A=1 >> /etc/profile.d/a.sh\nCOPY nccl.conf /etc/\n")) == [
        2,
        3,
    ]

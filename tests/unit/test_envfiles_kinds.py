"""What kind of file it is, and lines that are none of its kind: nothing passes that was not read."""

from __future__ import annotations

import pytest

from netdoctor.variables.files import kind_of, parse


def unread(path: str, text: str) -> list[int]:
    return [one.source.line for one in parse(path, text).unread]


@pytest.mark.parametrize(
    ("path", "text", "kind"),
    [
        ("job", "#!/usr/bin/env python3\n#SBATCH -N 2\nimport os\n", "other"),
        ("job.sh", "#!/usr/bin/python3 -u\n", "other"),
        ("run.r", "#!/bin/bash\nsrun a\n", "shell"),
        ("a.ts", "#!/usr/bin/env bash\nsrun a\n", "shell"),
        ("job.out", "#!/bin/bash\nsrun a\n", "shell"),
        ("job.yaml", "#!/bin/sh\nsrun a\n", "shell"),
        ("a.tcl", '#!/bin/sh\n# \\\nexec tclsh "$0" "$@"\n', "other"),
        ("a.py", "#!/bin/sh\n'''exec' /opt/python \"$0\" \"$@\"\n", "other"),
        ("job", "#!/usr/bin/sbatch\nsrun a\n", "shell"),
        ("job", "#!/usr/bin/env -S flux batch\nflux run a\n", "shell"),
        ("job", "#!/sbin/openrc-run\n", "shell"),
        ("job", "#!/usr/bin/yash\n", "shell"),
        ("job", "#!/usr/bin/perl\n", "other"),
        ("job", "#!/usr/bin/fish\n", "other"),
        ("job.sh", "#!\n", "other"),
        ("job", "#! /bin/sh -e\n", "shell"),
        ("job", "#!/bin/bash -l\n#SBATCH -N 2\n", "shell"),
        ("job", "#!/usr/bin/env -S bash -eu\n", "shell"),
        ("job", "#!/usr/bin/env -S LC_ALL=C -u X dash\n", "shell"),
        ("job", "#!/bin/busybox sh\n", "shell"),
        ("job", "#!/usr/local/bin/zsh-5.9\r\n", "shell"),
        ("job", "#!/bin/ksh93\n", "shell"),
        ("job", "#!/bin/tcsh -f\n", "shell"),
        ("play", "#!/usr/bin/env ansible-playbook\n", "yaml"),
        ("play.yml", "#!/usr/bin/env ansible-playbook\n", "yaml"),
        ("env.fish", "set -x NCCL_A 1\n", "other"),
        ("env.ps1", '$env:NCCL_A = "1"\n', "other"),
        ("run.log", "export NCCL_A=1\n", "other"),
        ("/etc/shadow", "root:*:19000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\n", "other"),
        ("/etc/passwd", "root:x:0:0:root:/root:/bin/bash\n", "other"),
        ("notes", "The nodes were slow today.\n", "other"),
        ("-", "srun ./train\n", "shell"),
        ("-", "#SBATCH -N 2\n./train\n", "shell"),
        ("setup", "f() {\n  export NCCL_A=1\n}\n", "shell"),
        ("run.cmd", "#PBS -l select=2\ncd $PBS_O_WORKDIR\n", "shell"),
        ("modulefile", "#%Module1.0\nsetenv NCCL_A 1\n", "shell"),
    ],
)
def test_a_kind_follows_from_name_first_line_and_lines(path: str, text: str, kind: str) -> None:
    assert kind_of(path, text) == kind


@pytest.mark.parametrize(
    ("script", "lines"),
    [
        ("python - <<< 'NCCL_A=1'", [1]),
        ("python -c \"import os; os.environ['NCCL_A']='1'\"", [1]),
        ("srun a\nsrun python -c \"import os; os.environ['NCCL_A']='1'\"", [2]),
        ("os.environ['NCCL_A'] = '1'", [1]),
        ("$ENV{NCCL_A} = 1;", [1]),
        ("set -x NCCL_A 1", [1]),
        ('$env:NCCL_A = "1"', [1]),
        ("NCCL_A INFO", [1]),
        ("n1:2:3 [0] NCCL INFO NCCL_A set by environment to 1.", [1]),
        ("kubectl set env deploy/x NCCL_A=1", [1]),
        ("launch NCCL_A=${NCCL_A:-1}", [1]),
        ("./a NCCL_TOPO_FILE=/x/NCCL_topo.xml", [1]),
        ('set_env "NCCL_A INFO"', [1]),
        ("ssh host './set NCCL_A 1 x'", [1]),
        ('fish -c "set -x NCCL_A 1"', [1]),
        ("perl -e '$ENV{NCCL_A} = 1; exec \"a\"'", [1]),
        ('env -S "NCCL_A=1 ./a"', [1]),
    ],
)
def test_a_line_that_is_not_understood_is_said(script: str, lines: list[int]) -> None:
    assert unread("job.sh", script) == lines


@pytest.mark.parametrize(
    "script",
    [
        "mpirun -genvlist NCCL_A,NCCL_B -x NCCL_C ./a",
        "sudo --preserve-env=NCCL_A,NCCL_B ./a",
        "env -u NCCL_A ./a",
        "if [[ $NCCL_A == 1 && -n ${NCCL_B:-} ]]; then echo NCCL_A=$NCCL_A; fi",
        'if [ -z "$NCCL_A" ] || [[ "${NCCL_A}" != "NCCL_A" && ! -v NCCL_B ]]; then echo NCCL_A; fi',
        "NAMES=(NCCL_A NCCL_B)\necho ${NAMES[@]}",
        "case $NCCL_A in 0) echo a;; esac",
        "make -j NCCL_HOME=/usr src.build",
        "python train.py --hca $NCCL_A",
        "env | grep NCCL_ | sort",
        "export NCCL_A=1\nunset NCCL_A NCCL_B",
        "for v in NCCL_A NCCL_B; do echo ${!v}; done",
        "docker run -e NCCL_A -e NCCL_B=1 image",
        ': "${NCCL_A:?set NCCL_A=INFO first}"',
        "sbcast NCCL_A.xml /tmp/x.xml; wc -l NCCL_A; curl -O https://x/NCCL_2.tgz; jq .NCCL_A f",
        "./check --topo=/x/NCCL_topo.xml NCCL_A.xml",
        'die "NCCL_A missing"; log_error "NCCL_A=${NCCL_A:-unset}"; mail -s "NCCL_A is low" root',
        'check_set "NCCL_A must be set"',
        "./configure --prefix=/x NCCL_HOME=/y",
    ],
)
def test_names_that_set_nothing_are_no_unknowns(script: str) -> None:
    assert unread("job.sh", script) == []


@pytest.mark.parametrize(
    ("path", "text", "lines"),
    [
        (".env", "NCCL_A=1\nNCCL_B: 2\n", [2]),
        (".env", "# NCCL_A of old\n\nNCCL_A=1\n", []),
        (".env", "NCCL_A = 1\n", [1]),
        ("a.service", "[Service]\nNCCL_A=1\n", [2]),
        ("a.service", "[Unit]\nDescription=sets NCCL_A\n[Service]\nEnvironment=NCCL_A=1\n", []),
    ],
)
def test_a_line_of_no_meaning_in_its_file_is_said(path: str, text: str, lines: list[int]) -> None:
    assert unread(path, text) == lines

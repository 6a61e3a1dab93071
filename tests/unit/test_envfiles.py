"""Variables found in files without running them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from netdoctor.variables.files import FileKind, Parsed, kind_of, parse, repeated

Seen = list[tuple[str, str | None, int]]


def seen(parsed: Parsed) -> Seen:
    return [(one.name, one.value, one.source.line) for one in parsed.assignments]


def problems(parsed: Parsed) -> list[tuple[str, str]]:
    return [(one.name, one.problem.rule.value) for one in parsed.assignments if one.problem]


def unread(parsed: Parsed) -> list[int]:
    return [one.source.line for one in parsed.unread]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("export NCCL_DEBUG=INFO", [("NCCL_DEBUG", "INFO", 1)]),
        ("export NCCL_DEBUG=INFO NCCL_ALGO=Ring", [("NCCL_DEBUG", "INFO", 1), ("NCCL_ALGO", "Ring", 1)]),
        ("export NCCL_DEBUG='IN FO' # NCCL_X=1", [("NCCL_DEBUG", "IN FO", 1)]),
        ('export NCCL_DEBUG="WARN"', [("NCCL_DEBUG", "WARN", 1)]),
        ('export NCCL_A="x\\"y"', [("NCCL_A", 'x"y', 1)]),
        ("export NCCL_A=x\\ y", [("NCCL_A", "x y", 1)]),
        ("export NCCL_A=", [("NCCL_A", "", 1)]),
        ("declare -x NCCL_A=1", [("NCCL_A", "1", 1)]),
        ("setenv NCCL_A 1", [("NCCL_A", "1", 1)]),
        ("NCCL_A=1 python train.py", [("NCCL_A", "1", 1)]),
        ("NCCL_A=1 NCCL_B=2 python train.py NCCL_C=3", [("NCCL_A", "1", 1), ("NCCL_B", "2", 1)]),
        ("env NCCL_A=1 -u NCCL_B python NCCL_C=1", [("NCCL_A", "1", 1)]),
        ("nohup env NCCL_A=1 ./a &", [("NCCL_A", "1", 1)]),
        ("mpirun -np 8 \\\n  -x NCCL_A=1 \\\n  -x LD_LIBRARY_PATH -x NCCL_B ./a", [("NCCL_A", "1", 2)]),
        ("mpiexec -genv NCCL_A 1 -n 2 ./a", [("NCCL_A", "1", 1)]),
        ("srun --export=ALL,NCCL_A=1,NCCL_B=2 ./a", [("NCCL_A", "1", 1), ("NCCL_B", "2", 1)]),
        ("sbatch --export NCCL_A=1 job.sh", [("NCCL_A", "1", 1)]),
        ("#!/bin/sh\n#SBATCH --nodes=2\n#SBATCH --export=NCCL_A=1\n", [("NCCL_A", "1", 3)]),
        (
            "docker run -e NCCL_A=1 --env NCCL_B=2 --env=NCCL_C=3 image",
            [("NCCL_A", "1", 1), ("NCCL_B", "2", 1), ("NCCL_C", "3", 1)],
        ),
        ("apptainer exec --env NCCL_A=1,NCCL_B=2 x.sif a", [("NCCL_A", "1", 1), ("NCCL_B", "2", 1)]),
        ("srun bash -c 'export NCCL_A=1; ./a'", [("NCCL_A", "1", 1)]),
        ("true\nsrun bash -c '\nexport NCCL_A=1\n'", [("NCCL_A", "1", 3)]),
        ("ARGS=(\n  --image x\n  -x NCCL_A=1\n  --env NCCL_B=2\n)", [("NCCL_A", "1", 3), ("NCCL_B", "2", 4)]),
        ("FROM x\nENV NCCL_A=1 NCCL_B=2\nENV NCCL_C 3", [("NCCL_A", "1", 2), ("NCCL_B", "2", 2), ("NCCL_C", "3", 3)]),
        ("#PBS -v NCCL_A=1,NCCL_B=2\n#PBS -v \n", [("NCCL_A", "1", 1), ("NCCL_B", "2", 1)]),
        ("if x; then export NCCL_A=1; fi", [("NCCL_A", "1", 1)]),
        ("cat <<< 'a b' > c\nexport NCCL_A=1\n", [("NCCL_A", "1", 2)]),
        ("sudo -E NCCL_A=1 ./a", [("NCCL_A", "1", 1)]),
        ("ssh h 'export NCCL_A=1; ./a'", [("NCCL_A", "1", 1)]),
        ("ssh h 'export TORCH_NCCL_A=1; ./a'", [("TORCH_NCCL_A", "1", 1)]),
        ("echo 'export NCCL_A=1; ./a'", []),
        ("timeout 9 env NCCL_A=1 ./a", [("NCCL_A", "1", 1)]),
        ("x && export NCCL_A=1 || export NCCL_A=2", [("NCCL_A", "1", 1), ("NCCL_A", "2", 1)]),
        ("f() { export NCCL_A=1; }", [("NCCL_A", "1", 1)]),
        ("echo export NCCL_A=1", []),
        ("# export NCCL_A=1", []),
        ("export PATH=/x:$PATH MY_NCCL_A=1", []),
        ("export NCCL_A=$(hostname)", [("NCCL_A", None, 1)]),
        ("x\nOUT=$(NCCL_A=1 ./a 'b)' \"c)\")\nexport NCCL_B=2", [("NCCL_A", "1", 2), ("NCCL_B", "2", 3)]),
        ("OUT=`NCCL_A=1 ./a`; export NCCL_B=2", [("NCCL_A", "1", 1), ("NCCL_B", "2", 1)]),
        ("X=$((1 + (2))) NCCL_A=1 ./a", [("NCCL_A", "1", 1)]),
        ("export NCCL_A=`hostname`", [("NCCL_A", None, 1)]),
        ("export NCCL_A=${X:-eth0}", [("NCCL_A", None, 1)]),
        ('export NCCL_A="eth$N"', [("NCCL_A", None, 1)]),
        ("export NCCL_A='eth$N'", [("NCCL_A", "eth$N", 1)]),
        ("export NCCL_A+=,x", [("NCCL_A", None, 1)]),
        ("export NCCL_A=a#b", [("NCCL_A", "a#b", 1)]),
        ("set -a\nNCCL_A=1\n", [("NCCL_A", "1", 2)]),
        ("export NCCL_A=1 \r\nexport NCCL_B=2 # x\r\n", [("NCCL_A", "1", 1), ("NCCL_B", "2", 2)]),
        ("f() { export NCCL_A=1; }\ntorchrun a", []),
        ("function f {\n export NCCL_A=1\n}\nsrun a", []),
        ("f ()\n{\n export NCCL_A=1\n}\nexport NCCL_B=1\nsrun a", [("NCCL_B", "1", 5)]),
        ("f() { export NCCL_A=1; }\nf\ntorchrun a", [("NCCL_A", "1", 1)]),
        ("f() { export NCCL_A=1; }\nif x; then f; fi\ntorchrun a", [("NCCL_A", "1", 1)]),
        ("if (x); then export NCCL_A=1; fi\ntorchrun a", [("NCCL_A", "1", 1)]),
        ("f() { export NCCL_A=1; torchrun a; }\n", [("NCCL_A", "1", 1)]),
        ("export X=$(cat <<'E'\nNCCL_A=1\nE\n)\nexport NCCL_B=1", [("NCCL_B", "1", 5)]),
        ("export NCCL_A=1\necho a\nunset NCCL_A X", []),
        ("export NCCL_A=1 NCCL_B=2\nunset NCCL_A\nexport NCCL_A=3", [("NCCL_B", "2", 1), ("NCCL_A", "3", 3)]),
        ("export NCCL_A=1\n./a\nunset NCCL_A", [("NCCL_A", "1", 1)]),
        ("export NCCL_A=1\nX=$(./a)\nunset NCCL_A", [("NCCL_A", "1", 1)]),
        ("export NCCL_A=1\necho `./a`\nunset NCCL_A", [("NCCL_A", "1", 1)]),
        ("export NCCL_A=1\neval './a'\nunset NCCL_A", [("NCCL_A", "1", 1)]),
        ("export NCCL_A=1\nunset -f NCCL_A", [("NCCL_A", "1", 1)]),
        ("export NCCL_A=1\nif b; then unset NCCL_A; fi", [("NCCL_A", "1", 1)]),
        ("export NCCL_A=1\nb && unset NCCL_A", [("NCCL_A", "1", 1)]),
        ("setenv NCCL_A 1\nunsetenv NCCL_A", []),
        ("export APPTAINERENV_NCCL_A=1 SINGULARITYENV_NCCL_B=2 X_NCCL_C=3", [("NCCL_A", "1", 1), ("NCCL_B", "2", 1)]),
        ("systemd-run --setenv=NCCL_A=1 ./a", [("NCCL_A", "1", 1)]),
        # export is an attribute of the name: bash keeps it for values that come later
        ("export NCCL_A\nNCCL_A=1\nsrun a", [("NCCL_A", "1", 2)]),
        ("declare -x NCCL_A\nNCCL_A=1\nsrun a", [("NCCL_A", "1", 2)]),
        ("f() { NCCL_A=1; }\nf\nexport NCCL_A\nsrun a", [("NCCL_A", "1", 1)]),
        ("export NCCL_A=1\nexport -n NCCL_A\nsrun a", []),
        ("export NCCL_A=1\n./a\nexport NCCL_A=0\nsrun b", [("NCCL_A", "0", 3)]),
        ("export NCCL_A=1\nsrun hostname\nexport NCCL_A=2\npython a", [("NCCL_A", "1", 1), ("NCCL_A", "2", 3)]),
        ("export NCCL_A=2\nsrun a\nexport NCCL_A=3\nsrun b", [("NCCL_A", "2", 1), ("NCCL_A", "3", 3)]),
        ("(export NCCL_A=1; ./a)\nsrun b", []),
        ("(export NCCL_A=1; srun b)", [("NCCL_A", "1", 1)]),
        ("export NCCL_A=1\n(export NCCL_A=2; ./x)\nsrun b", [("NCCL_A", "1", 1)]),
        ("export NCCL_A=a\nNCCL_A+=,b\nsrun a", [("NCCL_A", "a,b", 2)]),
        ("export NCCL_A=$'a\\n\\x41\\102\\u0043'", [("NCCL_A", "a\nABC", 1)]),
        ("for NCCL_A in 1 2; do export NCCL_A; srun b; done", [("NCCL_A", "1", 1), ("NCCL_A", "2", 1)]),
        ("f() { f; export NCCL_A=1; }\nf\nsrun a", [("NCCL_A", "1", 1)]),
        # statements that set a name and are no assignments
        ("printf -v NCCL_A 1; export NCCL_A; srun a", [("NCCL_A", "1", 1)]),
        ("printf -v NCCL_A %s 1; export NCCL_A; srun a", [("NCCL_A", None, 1)]),
        ("let NCCL_A=1; export NCCL_A; srun a", [("NCCL_A", "1", 1)]),
        ("((NCCL_A=1)); export NCCL_A; srun a", [("NCCL_A", "1", 1)]),
        ("read -r -p x: NCCL_A; export NCCL_A; srun a", [("NCCL_A", None, 1)]),
        ("mapfile -t NCCL_A < x; export NCCL_A; srun a", [("NCCL_A", None, 1)]),
        (': "${NCCL_A:=1}"; export NCCL_A; srun a', [("NCCL_A", "1", 1)]),
        (': "${NCCL_A:=$X}"; export NCCL_A; srun a', [("NCCL_A", None, 1)]),
        ("export NCCL_A\nsrun a", [("NCCL_A", None, 1)]),
        ("mpirun --mca mca_base_env_list 'NCCL_A=1;NCCL_B=2' a", [("NCCL_A", "1", 1), ("NCCL_B", "2", 1)]),
        # names that are wrong by case or one slip; those of other libraries are not
        (
            "export nccl_ib_hca=a NCLL_DEBUG=b nccl_color=c HCCL_SOCKET_IFNAME=d",
            [("nccl_ib_hca", "a", 1), ("NCLL_DEBUG", "b", 1)],
        ),
        ("nccl_debug=WARN\nexport NCCL_A=1", [("NCCL_A", "1", 2)]),
    ],
)
def test_shell(script: str, expected: Seen) -> None:
    parsed = parse("job.sh", script)
    assert seen(parsed) == expected
    assert problems(parsed) == []


@pytest.mark.parametrize(
    ("script", "lines"),
    [
        ("source ~/.bashrc", [1]),
        ("x\n. ./env.sh\n", [2]),
        ("eval $(tool)", [1]),
        ("cat <<EOF > x\nexport NCCL_A=1\nEOF\n", [2]),
        ("cat <<-'EOF'\n\tNCCL_A=1\n\tEOF\nexport NCCL_B=1", [2]),
        ("cat <<EOF\nnothing here\nEOF\n", []),
        ("cat > README.txt <<'EOF'\nexport NCCL_A=1\nEOF\n", []),
        ("cat > a.txt <<'EOF'\nexport NCCL_A=1\nEOF\n. a.txt\n", [2, 4]),
        ("module load cuda/12", []),
        ("module load aws-ofi-nccl", [1]),
        ("cat <<< 'NCCL_A=1'", []),
        ("x\necho 'never closed\nexport NCCL_A=1\n", [2]),
        ("x=$(never closed\nexport NCCL_A=1\n", [1]),
        ('echo "$(', [1]),
        ("echo x\\", []),
        ("docker run --env-file a.env image", [1]),
        ("docker run --env-file=a.env image", [1]),
        ("\ufeffexport NCCL_A=1", [1]),
        ("\ufeff#!/bin/sh\nexport NCCL_A=1", []),
        ("e\0x\0p", [1]),
        # what is not understood may set anything
        ("export $(grep -v '^#' nccl.env | xargs)", [1]),
        ("export $ENVS", [1]),
        ('export "${EXTRA[@]}"', [1]),
        ("for v in A B; do export NCCL_${v}=1; done", [1]),
        ('while read -r line; do export "$line"; done < x', [1]),
        ('declare -x "$name=1"', [1]),
        ('read -r "$name"', [1]),
        ("printf -v $name 1", [1]),
        ("set -a; source <(cat nccl.env); set +a", [1]),
        (". <(cat nccl.env)", [1]),
        ("srun env $(cat nccl.env) torchrun a", [1]),
        ("OPTS='-x NCCL_A=1'\nmpirun $OPTS a", [1]),
        ("export -f f; declare -A MAP; X=$(NCCL_A=1 ./a); MESSAGE='see NCCL_A'", []),
    ],
)
def test_what_cannot_be_seen_is_said(script: str, lines: list[int]) -> None:
    assert unread(parse("job.sh", script)) == lines


def test_a_kind_that_is_not_read_says_so() -> None:
    assert unread(parse("train.py", "import os\nos.environ['NCCL_DEBUG'] = 'INFO'\n")) == [2]
    assert unread(parse("train.py", "import os\n")) == [1]
    assert seen(parse("e.json", '{"env_vars": {\n"NCCL_A": "1", "NCCL_B": 2}}')) == [("NCCL_A", "1", 2), ("NCCL_B", "2", 2)]


def test_a_here_document_is_not_the_script() -> None:
    assert seen(parse("job.sh", "cat <<A <<B\nexport NCCL_A=1\nA\nexport NCCL_B=1\nB\nexport NCCL_C=1\n")) == [
        ("NCCL_C", "1", 6)
    ]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("NCCL_A=1\npython x", [("NCCL_A", "not-exported")]),
        ("NCCL_A=1\nexport NCCL_A", []),
        ("export NCCL_A=1\nNCCL_A=2", [("NCCL_A", "set-again")]),
        ("NCCL_A=1\nunset NCCL_A", []),
        ("export NCCL_A=1\nunset NCCL_A\nNCCL_A=2", [("NCCL_A", "not-exported")]),
        ("srun --export=ALL,NCCL_IB_HCA=mlx5_0,mlx5_1 a", [("NCCL_IB_HCA", "export-comma")]),
        ("srun --export=NCCL_A=1,PATH,ALL a", []),
        ("export NCCL_A=1\nexport NCCL_A=2\nsrun a", [("NCCL_A", "set-again")]),
        ("export NCCL_A=1\n./a\nexport NCCL_A=2\n./b", []),
        ("export NCCL_A=1\r\nsrun a\r\n", [("NCCL_A", "carriage-return")]),
        ("export NCCL_A='1'\r\n", [("NCCL_A", "carriage-return")]),
        ("export NCCL_A=1\nsrun --export=NONE a", [("NCCL_A", "not-handed-on")]),
        ("export NCCL_A=1\nsrun --export=PATH,NCCL_B=1 a", [("NCCL_A", "not-handed-on")]),
        ("export NCCL_A=1\nsrun --export PATH,NCCL_A a", []),
        ("export NCCL_A=1\nsrun --export=NONE a\nsrun b", []),
        ("export NCCL_A=1\nsrun a", []),
        ("srun a\nexport NCCL_A=1", [("NCCL_A", "not-handed-on")]),
        ("srun a\nexport NCCL_A=1\n./b", []),
        ("nvidia-smi\nexport NCCL_A=1", []),
        ("export NCCL_A=1\nmpirun -H a:8,b:8 x", [("NCCL_A", "perhaps-not-handed-on")]),
        ("export NCCL_A=1\nmpirun -x NCCL_A -H a:8,b:8 x", []),
        ("export NCCL_A=1\nmpirun x", []),
        ("export NCCL_A=1\nsudo torchrun x", [("NCCL_A", "perhaps-not-handed-on")]),
        ("export NCCL_A=1\nsudo -E torchrun x", []),
        ("export NCCL_A=1\ndocker run image", [("NCCL_A", "not-handed-on")]),
        ("export NCCL_A=1\ndocker run -e NCCL_A image", []),
        ("export NCCL_A=1\ndocker run --env-file x image", []),
        ("export NCCL_A=1\ndocker run image\ntorchrun a", []),
        ("export NCCL_A = 1", [("NCCL_A", "blank-at-equals")]),
        ("export NCCL_A =1", [("NCCL_A", "blank-at-equals")]),
        ("NCCL_A = 1", [("NCCL_A", "blank-at-equals")]),
        ("echo NCCL_A = 1", []),
        ("export NCCL-A=1", [("NCCL_A", "not-a-name")]),
        ("export NCCL_IB_HCA=mlx5_0:1;mlx5_1:1\nsrun a", [("NCCL_IB_HCA", "cut-at-semicolon")]),
        ("export NCCL_IB_HCA=mlx5_0;srun a", []),
        ("set -a; NCCL_A=1; set +a; NCCL_B=2\nsrun a", [("NCCL_B", "not-exported")]),
        ("#SBATCH -N 4 --export=NONE\nexport NCCL_A=1\nsrun a", [("NCCL_A", "not-handed-on")]),
        ("#SBATCH --export=NONE\nexport NCCL_A=1\nsrun --export=ALL a", []),
        ("#SBATCH --export=NONE\nunset SLURM_EXPORT_ENV\nexport NCCL_A=1\nsrun a", []),
        ("#SBATCH --export=NONE\nexport SLURM_EXPORT_ENV=ALL NCCL_A=1\nsrun a", []),
        ("#SBATCH --export=NONE\nexport NCCL_A=1\ntorchrun a", []),
    ],
)
def test_ways_of_writing_that_go_wrong(script: str, expected: list[tuple[str, str]]) -> None:
    assert problems(parse("job.sh", script)) == expected


def twice(parsed: Parsed) -> list[tuple[str | None, str | None]]:
    return [(before.value, after.value) for before, after in repeated(parsed.assignments)]


@pytest.mark.parametrize("end", ["", "\n"], ids=["no newline at the end", "a newline"])
@pytest.mark.parametrize("between", ["", "\n", " \n", " # why\n  "], ids=repr)
def test_behind_and_or_a_command_is_conditional(between: str, end: str) -> None:
    (one,) = parse("job.sh", f"ibstat &&{between}export NCCL_A=1{end}").assignments
    assert one.scope != ""


def test_a_here_document_may_end_the_file() -> None:
    assert unread(parse("job.sh", "cat > x <<EOF\nhello\nEOF")) == []
    assert unread(parse("job.sh", "cat > x <<EOF\nexport OFI_NCCL_A=1")) == [2]


def test_a_quote_that_ends_in_a_backslash_does_not_end() -> None:
    assert unread(parse("job.sh", "echo 'a\\")) == [1]


def test_repeats_count_in_one_scope_only() -> None:
    assert twice(parse("j.sh", "export NCCL_A=1\nexport NCCL_A=2\n")) == []  # the last one counts
    assert twice(parse("j.sh", "export NCCL_A=1\nexport NCCL_A=1\n")) == []
    assert twice(parse("j.sh", "if a\nthen\nexport NCCL_A=1\nelse\nexport NCCL_A=2\nfi\n")) == []
    assert twice(parse("j.sh", "NCCL_A=1 ./a\nNCCL_A=2 ./b\n")) == []
    assert twice(parse("j.sh", "case $1 in\na) export NCCL_A=1;;\n(b) export NCCL_A=2;;\nesac\n")) == []
    assert twice(parse("j.sh", "[ a ] && export NCCL_A=1\n[ b ] &&\n  export NCCL_A=2\nexport NCCL_B=1\n")) == []
    assert twice(parse("j.sh", "(x)\n[ a ] && b\nexport NCCL_A=1\ncd x && y; export NCCL_A=2\n")) == []
    assert twice(parse("j.sh", "mpirun -x NCCL_A=1 -x NCCL_A=2 ./b\n")) == [("1", "2")]


@pytest.mark.parametrize(
    ("line", "expected", "problem"),
    [
        ("NCCL_A=1", "1", ""),
        ("export NCCL_A=1", "1", ""),
        ('NCCL_A="1"', "1", "env-quotes"),
        ("NCCL_A=1 # one", "1", ""),
        ("NCCL_A=a#b", "a#b", ""),
        ("NCCL_A=", "", ""),
        ("NCCL_A=${X}", None, ""),
        ("NCCL_A='${X}'", "${X}", "env-quotes"),
        ("NCCL_A=1\r", "1", ""),
        ("SINGULARITYENV_NCCL_A=1", "1", ""),
        ("\ufeffNCCL_A=1", "1", "byte-order-mark"),
    ],
)
def test_env_files(line: str, expected: str | None, problem: str) -> None:
    parsed = parse("job.env", f"# NCCL_B=1\n{line}\nOTHER=1\n")
    assert seen(parsed) == [("NCCL_A", expected, 2)]
    found = parsed.assignments[0].problem
    assert (found.rule.value if found else "") == problem


def test_nccl_conf_keeps_what_nccl_keeps() -> None:
    lines = "NCCL_A\nexport NCCL_B 1\n# NCCL_C\nhello\n"
    assert problems(parse("/etc/nccl.conf", lines)) == [("NCCL_A", "conf-line"), ("export NCCL_B 1", "conf-line")]
    assert seen(parse("/etc/nccl.conf", "\ufeffNCCL_A=1\n")) == [("\ufeffNCCL_A", "1", 1)]
    assert seen(parse("/etc/nccl.conf", "NCCL_A=1\n#NCCL_B=1\nNCCL_C = 2\n")) == [("NCCL_A", "1", 1), ("NCCL_C ", " 2", 3)]


@pytest.mark.parametrize(
    ("path", "text", "kind"),
    [
        ("a/job.sh", "", "shell"),
        ("job.sbatch", "", "shell"),
        ("job", "#!/bin/bash\n", "shell"),
        (".env", "", "env"),
        ("prod.env", "", "env"),
        ("values.yaml", "", "yaml"),
        ("/etc/nccl.conf", "", "conf"),
        ("train.service", "", "unit"),
        ("train.container", "", "unit"),
        ("/etc/systemd/system/a.service.d/nccl.conf", "\n# why\n[Service]\n", "unit"),
        ("/etc/nccl.conf", "NCCL_A=1\n[Service]\n", "conf"),
        ("env.json", "", "yaml"),
        ("train.py", "", "other"),
        ("-", "apiVersion: v1\n", "yaml"),
        ("-", "NCCL_A=1\nB=2\n", "env"),
        ("-", "export NCCL_A=1\n", "shell"),
        ("-", "mpirun -x NCCL_A=1 ./a\n", "shell"),
    ],
)
def test_kinds(path: str, text: str, kind: str) -> None:
    assert kind_of(path, text) == kind


SHELL = (
    "NCCL_A=1",
    "export ",
    "NCCL_IB_HCA=",
    "$(",
    ")",
    "`",
    "${X}",
    "'",
    '"',
    "\\",
    "\n",
    " ",
    "<<E",
    "E",
    ";",
    "&&",
    "{",
    "}",
    "#",
)
YAML = (
    "- ",
    ": ",
    "env:\n",
    "name: NCCL_A",
    "value: ",
    "*a",
    "&a ",
    "!x ",
    "|\n",
    "  ",
    "-x ",
    "--export=ALL,",
    "bash -c ",
    "if ",
    "fi",
)
PIECES = st.sampled_from((*SHELL, *YAML))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES | st.text(max_size=8), max_size=40).map("".join), st.sampled_from(FileKind))
def test_no_text_raises(text: str, kind: FileKind) -> None:
    parsed = parse("f", text, kind)
    lines = text.count("\n") + 1
    for source in [one.source for one in parsed.assignments] + [one.source for one in parsed.unread]:
        assert source.path == "f" and 1 <= source.line <= lines + 1
    for found in parsed.assignments:
        assert found.value is not None or found.why or found.problem


def test_a_file_that_is_no_text_is_not_read() -> None:
    found = parse("job.sh", "export NCCL_DEBUG=INFO\n\0\n")
    assert found.assignments == ()
    assert [one.why for one in found.unread] == ["not a text in UTF-8: what it sets is not known"]

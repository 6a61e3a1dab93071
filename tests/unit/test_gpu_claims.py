"""What `make gpu-proof` claims, the page about it, and that nothing tells the machine."""

from __future__ import annotations

import ast
import pathlib
import sys

import pytest

from tests.unit.test_gpu_proof import ROOT, STEP
from tools.gpu_proof import clean, report
from tools.gpu_proof.claims import STEPS, table
from tools.gpu_proof.ledger import FAILED, Ledger

# Markdown


def test_the_page_has_every_claim_once_and_quotes_break_nothing() -> None:
    ledger = Ledger((STEP,))
    ledger.machine = {"gpu": "1 x T4 | rogue\n# title"}
    ledger.say("x.one", FAILED, "a | b\n| c \x1b[31m", {"figure": 1.23456, "list": ["|"]})
    page = report.markdown(ledger.document())
    rows = [line for line in page.splitlines() if line.startswith("| x.")]
    assert len(rows) == 3 and "**FAILED**" in rows[0] and "a \\| b \\| c" in rows[0] and "figure 1.235" in rows[0]
    assert "\x1b" not in page and not [line for line in page.splitlines() if line.startswith("# title")]
    assert "x.two | not seen" in page and "nothing was said about it" in page


def test_the_page_says_that_it_is_not_whole() -> None:
    ledger = Ledger((STEP,))
    ledger.running = "x"
    assert "Not whole: it stood in step x" in report.markdown(ledger.document())


# Claims and what shows them


def _test_functions() -> set[str]:
    found = set()
    for path in (*ROOT.glob("tests/live/test_gpu_*.py"), ROOT / "tests/live/test_allreduce_gpu.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found.add(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def test_every_gpu_test_is_a_claim_and_every_claim_is_shown() -> None:
    every = [claim for step in STEPS for claim in step.claims]
    assert len({c.id for c in every}) == len(every) > 45
    sources = {c.source.partition("[")[0] for c in every if c.source.startswith("tests/")}
    assert sources == _test_functions()
    assert all((ROOT / c.source).exists() for c in every if not c.source.startswith("tests/"))


def test_the_cases_of_the_environment_are_claims() -> None:
    tree = ast.parse((ROOT / "tests/live/test_gpu_environment.py").read_text())
    cases = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "CASES"
    )
    assert isinstance(cases, ast.Dict)
    names = {ast.literal_eval(key) for key in cases.keys if key is not None}
    assert {f"env.{name}" for name in names} == {c.id for s in STEPS if s.name == "environment" for c in s.claims}


def test_the_wheels_are_enough_for_what_is_imported() -> None:
    """Packages that the tests of a GPU and the steps import at their top, beside the standard library, are asked for."""
    from tools.gpu_proof import bootstrap

    files = [*ROOT.glob("tests/live/test_gpu_*.py"), ROOT / "tests/conftest.py", ROOT / "tests/support/machines/gpus.py"]
    files += [ROOT / "tests/live/test_allreduce_gpu.py", ROOT / "bench/gpu.py", *ROOT.glob("tools/gpu_proof/*.py")]
    wanted = set()
    for path in (p for p in files if p.exists()):
        for node in ast.parse(path.read_text()).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wanted |= {name.partition(".")[0] for name in names}
    others = wanted - set(sys.stdlib_module_names) - {"netdoctor", "tests", "tools", "bench"}
    assert others <= set(bootstrap.MODULES)


def test_every_figure_is_a_claim() -> None:
    from bench import gpu

    assert [m.name for m in gpu.MEASURES] and {m.name for m in gpu.MEASURES} == {
        c.id for s in STEPS if s.name == "figures" for c in s.claims
    }


def test_the_document_lists_the_claims_as_they_are() -> None:
    """`python -m tools.gpu_proof --list` prints what stands between the marks."""
    text = (ROOT / "docs" / "gpu-proof.md").read_text()
    between = text.partition("<!-- claims:begin -->\n")[2].partition("<!-- claims:end -->")[0]
    assert between.strip() == table().strip()


# What leaves the machine


def test_names_and_addresses_are_replaced_alike_everywhere() -> None:
    cleaner = clean.Cleaner()
    log = (
        "n:1:2 [0] NCCL INFO Bootstrap: Using eth0:10.1.2.3<0>\nn:1:2 [0] NCCL INFO NCCL version 2.29.7+cuda12.9\n"
        "n:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB; OOB eth0:10.1.2.3<0> guid 0xa088c20300b01234\n"
        "n:1:2 [0] NCCL INFO GPU-1b2c3d4e-1111-2222-3333-123456789abc fe80::1%eth0 127.0.0.1 12:30:45\n"
    )
    text = cleaner.text(log)
    assert text.count("192.0.2.1<0>") == 2 and "10.1.2.3" not in text
    assert "guid 0xa088c203000000" in text and "b01234" not in text and "GPU-1b2c3d4e" not in text and "fe80::1%" not in text
    assert "2.29.7+cuda12.9" in text and "127.0.0.1" in text and "12:30:45" in text
    assert cleaner.text("10.1.2.3") == "192.0.2.1"


def test_what_a_failure_quotes_is_cleaned_before_it_is_published(tmp_path: pathlib.Path) -> None:
    ledger = Ledger((STEP,))
    ledger.say("x.one", FAILED, f"File {ROOT}/tests/x.py: eth0:10.9.8.7<0>", {"log": [f"{ROOT}/build", {"at": "fd00::9"}]})
    report.write(ledger.document(), tmp_path / "proof")
    for suffix in (".json", ".md"):
        text = (tmp_path / f"proof{suffix}").read_text()
        assert "x.one" in text and "/tests/x.py" in text
        assert not [word for word in (str(ROOT), "10.9.8.7", "fd00::9") if word in text]


@pytest.mark.slow
def test_what_tells_the_machine_is_found() -> None:
    assert clean.telling("nothing here 192.0.2.1") == []
    for word in (*clean.words(), *clean.own_addresses()):
        assert word in clean.telling(f"x {word} y")
        assert clean.telling(clean.Cleaner().text(f"x {word} y")) == [] or ":" in word  # hardware addresses are not in logs

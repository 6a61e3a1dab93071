"""netdoctor deploy: every file, printed or written, and nothing overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from netdoctor.cli import deploy

FOLDER = Path(__file__).parents[2] / "netdoctor/deploy"
WHAT = sorted(p.name for p in FOLDER.iterdir() if p.is_dir() and not p.name.startswith("_"))


def below(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and "__pycache__" not in p.parts and p.suffix != ".pyc"
    }


def test_it_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert deploy.run(None, None) == 0
    assert capsys.readouterr().out.split() == WHAT
    assert deploy.run("nomad", None) == 2
    assert "kubernetes" in capsys.readouterr().err
    assert deploy.run("..", None) == 2


@pytest.mark.parametrize("what", WHAT)
def test_every_file_is_written_and_printed(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert deploy.run(what, str(tmp_path / "out")) == 0
    place = str(tmp_path / "out").encode()
    assert below(tmp_path / "out") == {
        name: data.replace(b"/etc/slurm/netdoctor", place) if what == "slurm" else data
        for name, data in below(FOLDER / what).items()
    }
    steps = capsys.readouterr().err.splitlines()
    assert [step[:3] for step in steps] == ["1. ", "2. ", "3. "]
    assert str(tmp_path / "out") in "".join(steps)
    assert deploy.run(what, None) == 0
    printed = capsys.readouterr().out
    for name, data in below(FOLDER / what).items():
        assert f"# ---- {name}\n" in printed
        assert data.decode() in printed


def test_what_was_edited_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert deploy.run("kubernetes", str(tmp_path)) == 0
    assert deploy.run("kubernetes", str(tmp_path)) == 0  # equal files are no conflict
    edited = tmp_path / "base/job.yaml"
    edited.write_text("mine\n")
    (tmp_path / "Containerfile").unlink()
    assert deploy.run("kubernetes", str(tmp_path)) == 2
    assert "base/job.yaml" in capsys.readouterr().err
    assert edited.read_text() == "mine\n"
    assert not (tmp_path / "Containerfile").exists()


def test_the_edited_configuration_stays_and_the_rest_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert deploy.run("slurm", str(tmp_path)) == 0
    conf, script = tmp_path / "netdoctor.conf", tmp_path / "prolog.sh"
    conf.write_text(edited := conf.read_text() + "# ours\n")
    script.unlink()
    assert deploy.run("slurm", str(tmp_path)) == 0
    assert conf.read_text() == edited and script.exists()
    assert f"kept as it is, for it differs from what this version writes: {conf}" in capsys.readouterr().err


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "Containerfile").symlink_to(tmp_path / "elsewhere")
    assert deploy.run("kubernetes", str(tmp_path)) == 2
    assert not (tmp_path / "elsewhere").exists()


def test_slurm_scripts_say_their_own_place(tmp_path: Path) -> None:
    assert deploy.run("slurm", str(tmp_path)) == 0
    snippet = (tmp_path / "slurm.conf.snippet").read_text()
    named = [line.partition("=")[2] for line in snippet.splitlines() if line.partition("=")[2].startswith("/")]
    assert len(named) == 4
    assert all(Path(path).is_file() for path in named)
    assert deploy.run("slurm", str(tmp_path / "with a blank")) == 2
    assert not (tmp_path / "with a blank").exists()


def test_an_empty_variable_is_no_folder_and_no_image(capsys: pytest.CaptureFixture[str]) -> None:
    assert deploy.run("kubernetes", "") == 2
    assert "--to: it names no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "Netdoctor", "registry.example.com/nd:", "a:b:c", "x/", "/x", "nd@sha256:12", "a\nb"]
)
def test_what_no_registry_could_serve_is_no_image(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pod.yaml").write_text("kind: Pod\nspec: {containers: [{name: a, image: b}]}\n")
    assert deploy.gate(str(tmp_path / "pod.yaml"), name) == 2
    said = capsys.readouterr()
    assert not said.out and "no name of an image" in said.err


@pytest.mark.parametrize(
    "name", ["netdoctor", "nd:1", "r.example.com:5000/a/b_c--d:v1.2-x", "[::1]:5000/nd", "LOCAL/nd", "nd:1@sha256:" + "a" * 64]
)
def test_what_a_registry_could_serve_is_the_image(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pod.yaml").write_text("kind: Pod\nspec: {containers: [{name: a, image: b}]}\n")
    assert deploy.gate(str(tmp_path / "pod.yaml"), name) == 0
    assert name in capsys.readouterr().out

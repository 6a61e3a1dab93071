"""Credentials planted wherever others write: none of them comes out of any output."""

from __future__ import annotations

import json
import pathlib
import random
import string
from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner

from netdoctor import engine
from netdoctor.cli import deliver, main, setup
from netdoctor.cli.clean import clean
from netdoctor.cli.options import Options
from netdoctor.config.load import Config
from netdoctor.credentials import scrub
from netdoctor.facts import registry
from netdoctor.host.base import RecordingHost, ReplayHost
from netdoctor.host.redact import Redactor
from netdoctor.model import Finding, Status
from netdoctor.report import formats
from netdoctor.snapshot import snapshot
from netdoctor.variables.catalogue import accepts
from tests.support.clusters import fleets
from tests.support.facts import reports
from tests.support.sources import ROOT

_DRAW = random.Random(14)
_BOTH, _LOW = string.ascii_letters + string.digits, string.ascii_lowercase + string.digits


def drawn(length: int, of: str = _BOTH) -> str:
    return "".join(_DRAW.choice(of) for _ in range(length))


def kinds() -> Iterator[tuple[str, str, str]]:
    """What it is, the part that must not come out, and how it is written."""

    def marked(what: str, mark: str, length: int, of: str = _BOTH) -> tuple[str, str, str]:
        token = drawn(length, of)
        return what, token, mark + token

    yield marked("GitHub", "ghp_", 36)
    yield marked("GitHub, fine-grained", "github_pat_", 60)
    yield marked("GitLab", "glpat-", 20)
    yield marked("NVIDIA", "nvapi-", 64)
    yield marked("Hugging Face", "hf_", 34)
    yield marked("Google", "AIza", 35)
    yield marked("npm", "npm_", 36)
    yield marked("Docker", "dckr_pat_", 27)
    yield marked("Slack", "xoxb-2345678901-", 24)
    yield marked("AWS", "AKIA", 16, string.ascii_uppercase)
    yield marked("a provider of models", "sk-proj-", 48)
    yield marked("a JSON Web Token", "eyJhbGciOiJIUzI1NiJ9.", 60)
    yield marked("Vault", "hvs.", 95)
    secret, password, signature, key = drawn(40, _BOTH + "/+"), drawn(12), drawn(43), drawn(64)
    yield "AWS, beside its name", secret, f"aws_secret_access_key={secret}"
    yield "URL", password, f"https://ada:{password[:6]}/{password[6:]}@mirror.example/simple"
    yield "Azure SAS", signature, f"https://x.blob.example/y?sv=2024-01-01&sig={signature}%3D"
    yield "AWS, signed URL", key, f"https://s3.example/b?X-Amz-Date=1&X-Amz-Signature={key}"
    yield "PEM", key, f"-----BEGIN RSA PRIVATE KEY-----\\n{key}\\n-----END RSA PRIVATE KEY-----"
    yield "by no mark at all", signature, f"deploys as {signature}"
    yield "the hash of a password", key, f"$6${drawn(16)}${key}"
    yield "the hash of a password, with rounds", signature, f"$5$rounds=5000${drawn(8)}${signature}"
    word = drawn(9, string.ascii_lowercase)
    yield "a word beside a name", word, f"password={word}"


KINDS = tuple(kinds())
REPORTS = (*formats.names(metrics=True), "termination")  # of a node; those of logs, scripts and fleets are other renderers
OTHERS = ("snapshot", "log", "env", "fleet", "clean", "stderr")
IDS = [what for what, _, _ in KINDS]


def out(secret: str, text: str) -> bool:
    """Whether the secret, or the greater part of it, stands in `text`."""
    part = max(6, len(secret) // 2)
    return any(secret[n : n + part] in text for n in range(len(secret) - part + 1))


def node(**answers: object) -> snapshot.Snapshot:
    recorded = snapshot.loads((ROOT / "fixtures/hosts/cpu-node/snapshot.json").read_text())
    return snapshot.Snapshot({**recorded.answers, **answers}, dict(recorded.runs), recorded.policy)  # type: ignore[dict-item]


def everything_of(**answers: object) -> str:
    """Every format of the report of a node with these answers, and its snapshot, taken through the door."""
    taken = node(**answers)
    config = Config(vantage="job")
    specs, extra = setup.load_checks(config, ())
    host = RecordingHost(ReplayHost({**taken.answers, "config:": config.as_answer()}), Redactor(accepts))
    work = engine.Work(host, specs, extra, dict(taken.runs))
    engine.collect(work, [*engine.wanted(specs), *registry.SOURCES])
    engine.judge_all(work)
    report = engine.report(work, setup.decider(config), config.profile)
    kept = snapshot.Snapshot(host.answers, dict(taken.runs), taken.policy)
    return "\n".join([*(formats.render(report, name) for name in REPORTS), snapshot.dumps(kept)])


def invoked(*words: str) -> str:
    done = CliRunner().invoke(main.app, list(words), catch_exceptions=False)
    return done.output + done.stderr


def printed(command: str, path: pathlib.Path) -> str:
    return "".join(
        invoked(*command.split(), str(path), "-f", name) for name in formats.names(metrics=command.startswith("fleet"))
    )


PLACES: dict[str, Callable[[str, pathlib.Path], str]] = {
    "a variable that NCCL reads": lambda text, _: everything_of(**{"env:": {"NCCL_NET": text}}),
    "a variable that nobody knows": lambda text, _: everything_of(**{"env:": {"NCCL_SIGNED": text, "TORCH_X": text}}),
    "nccl.conf": lambda text, _: everything_of(**{"file:/etc/nccl.conf": f"# {text}\n{text}\nNCCL_NET={text}\nNCCL_X={text}"}),
    "a file that NCCL_CONF_FILE names": lambda text, _: everything_of(
        **{"env:": {"NCCL_CONF_FILE": "/etc/x"}, "file:/etc/x": f"# {text}\nroot:{text}:1\nMY={text}\nNCCL_X={text}"}
    ),
    "a file that PBS_NODEFILE names": lambda text, _: everything_of(
        **{"env:": {"PBS_NODEFILE": "/etc/x"}, "file:/etc/x": f"root:{text}:1\n"}
    ),
    "a file that LSB_DJOB_HOSTFILE names": lambda text, _: everything_of(
        **{"env:": {"LSB_DJOB_HOSTFILE": "/etc/x"}, "file:/etc/x": f"root:{text}:1\n"}
    ),
    "the kernel's command line": lambda text, _: everything_of(**{"file:/proc/cmdline": f"ro token={text} {text}"}),
    "passwd": lambda text, _: everything_of(**{"file:/etc/passwd": f"ada:{text}:1:1:{text}:/home/ada:{text}\n"}),
    "a library's answer": lambda text, _: everything_of(**{"ask:nvml": {"driver": text, "devices": [], "cuda": 13000}}),
    "a link's name": lambda text, _: everything_of(**{"file:/proc/sys/kernel/hostname": text}),
    "a log": lambda text, path: logged(path, f"h:1:1 [0] NCCL WARN socket {text}\nh:1:1 [0] NCCL INFO NCCL_NET set to {text}"),
    "a job script": lambda text, path: scripted(path, text),
    "a node's report": lambda text, path: reported(path, text),
    "a finding of a site's check": lambda text, _: found(text),
    "an error": lambda text, _: invoked("diagnose", f"/nowhere/{text}"),
    "a report that exists": lambda text, path: cleaned(path, text),
}  # fmt: skip


def logged(path: pathlib.Path, text: str) -> str:
    (path / "job.log").write_text(text)
    return printed("log", path / "job.log")


def scripted(path: pathlib.Path, text: str) -> str:
    (path / "job.sh").write_text(f"export NCCL_NET='{text}'\nexport NCCL_WHAT='{text}'\nexport NCCL_IB_HCA=$(curl {text})\n")
    return printed("env --file", path / "job.sh")


def reported(path: pathlib.Path, text: str) -> str:
    one = fleets.report("gpu-1", number=1)
    fleets.own_fail(one, message=text)
    one["verdict"]["text"] = text
    one["inventory"]["nccl_variables"]["NCCL_NET"] = text
    (path / "gpu-1.json").write_text(json.dumps(one))
    (path / "gpu-2.json").write_text(json.dumps(fleets.report("gpu-2", number=2)))
    return printed("fleet report", path)


def found(text: str) -> str:
    finding = Finding(Status.FAIL, text, text, evidence={"said": text, "rows": [text]}, notes=(text,), how=text, why=text)
    report = reports.report(reports.check("site.own", finding))
    return "".join(formats.render(report, name) for name in REPORTS)


def cleaned(path: pathlib.Path, text: str) -> str:
    written = {
        "r.json": json.dumps({"checks": [{"why": text, "token": text}]}),
        "r.html": f'<p title="{text}">{text}</p>',
        "r.txt": text,
    }
    for name, content in written.items():
        (path / name).write_text(content)
    return "".join(invoked("clean", str(path / name)) for name in written)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_no_planted_credential_comes_out(place: str, tmp_path: pathlib.Path) -> None:
    said = PLACES[place]("; ".join(text for _, _, text in KINDS), tmp_path)
    assert said and not [what for what, secret, _ in KINDS if out(secret, said)]


@pytest.mark.parametrize(("secret", "text"), [(secret, text) for _, secret, text in KINDS], ids=IDS)
def test_a_credential_goes_and_stays_gone(secret: str, text: str) -> None:
    for written in (text, f"said {text}", f'"{text}"', text[: len(text) * 2 // 3]):
        assert not out(secret, scrub(written)) and scrub(scrub(written)) == scrub(written)


def test_there_are_enough() -> None:
    """Two credentials have two writings each: counted once."""
    planted = {(secret, place) for _, secret, _ in KINDS for place in PLACES}
    assert len(planted) >= 150 and len(PLACES) >= 12 and len({*REPORTS, *OTHERS}) >= 9


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.parent.name for path in (ROOT / "fixtures/hosts").glob("*/snapshot.json")))
def test_a_recorded_machine_has_nothing_to_clean(name: str) -> None:
    for path in (ROOT / "fixtures/hosts" / name).glob("*.json"):
        text = path.read_text()
        assert clean(text) is text


def test_words_of_the_site_go_too(tmp_path: pathlib.Path) -> None:
    page = deliver.without('{"a": "said \\"Orion\\" & Orion"} &lt;Orion&gt;', Options(redact=["Orion", 'said "Orion"']))
    assert "Orion" not in page and page.count("<redacted>") == 3
    (tmp_path / "x.log").write_text("rack Orion-7")
    assert invoked("clean", str(tmp_path / "x.log"), "--redact", "Orion") == "rack <redacted>-7"


@pytest.mark.parametrize(
    "text",
    [
        "NCCL INFO Bootstrap: Using eth0:10.0.0.2<0>",
        "GPU-aa6688d4-9952-46b1-f70e-e6f9ced86ed9",
        "fifoRkey=0x4df0 fifoLkey=0x4df0",
        "_ZN4c10d16ProcessGroupNCCL8WorkNCCL15checkAndThrowExceptionEv",
        "registry.example:5000/ml/train@sha256:0f3a5c",
        "https://registry.example:5000/ml/train@sha256:0f3a5c",
        "wait timeout after 8000ms, keys: /default_pg/0//cpu//0/1",
        "NCCL_MNNVL_CLIQUE_ID set by environment to 3",
        "the key is not set",
        "srun --export=$1$2 bash -c '$1$suffix'",
        "PKEY=0x8001 NCCL_IB_PKEY=1",
        "commit e9f35d5f43ebb713eb7bdf4b548b47ef12345678",
    ],
)
def test_what_is_no_credential_stays(text: str) -> None:
    assert scrub(text) == text

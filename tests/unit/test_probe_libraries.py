"""The job's Python and its packages, found by reading files alone."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.facts import library_search as find, presence
from netdoctor.facts.cpu import MemoryPolicy, _policy
from netdoctor.facts.libraries import Libraries, probe
from netdoctor.facts.library_search import JobPython, Torch
from netdoctor.host.base import Answer, ReplayHost
from netdoctor.model import Kind, Unavailable
from tests.support.facts.hardware import gpus, pci
from tests.support.facts.software import libraries

FILE: Answer = {"mode": 0o755, "uid": 0, "gid": 0, "type": "file", "major": 0, "minor": 0, "dev": 1}
ABSENT = Unavailable("absent")


class Files(ReplayHost):
    """A machine with these files; whatever else is asked is absent."""

    def __init__(self, files: dict[str, str], folders: dict[str, list[str]] | None = None, **answers: Answer) -> None:
        replies: dict[str, Answer] = {}
        for path, text in files.items():
            replies |= {f"stat:{path}": FILE, f"file:{path}": text}
        replies |= {f"dir:{path}": list(names) for path, names in (folders or {}).items()}
        super().__init__(replies | answers)

    def ask(self, question: str) -> Answer:
        got = super().ask(question)
        return ABSENT if got == Unavailable("not recorded") else got


VENV = ("/venv/bin/python3", "VIRTUAL_ENV")
PYTHONS: dict[str, tuple[dict[str, str], dict[str, str], str | None, tuple[str, str]]] = {
    "configured": ({"/py/bin/python3": ""}, {"VIRTUAL_ENV": "/venv"}, "/py/bin/python3", ("/py/bin/python3", "--python")),
    "venv": ({"/venv/bin/python3": "", "/usr/bin/python3": ""}, {"VIRTUAL_ENV": "/venv"}, None, VENV),
    "venv without python3": ({"/venv/bin/python": ""}, {"VIRTUAL_ENV": "/venv/"}, None, ("/venv/bin/python", "VIRTUAL_ENV")),
    "conda": ({"/conda/bin/python3": ""}, {"CONDA_PREFIX": "/conda"}, None, ("/conda/bin/python3", "CONDA_PREFIX")),
    "torchrun": (
        {"/opt/bin/torchrun": "#!/opt/job/bin/python3.12\nimport sys\n", "/opt/job/bin/python3.12": "", "/usr/bin/python3": ""},
        {"PATH": "/opt/bin:/usr/bin"},
        None,
        ("/opt/job/bin/python3.12", "the first line of /opt/bin/torchrun"),
    ),
    "torchrun with a long path": (
        {"/opt/bin/torchrun": "#!/bin/sh\n'''exec' \"/opt/a b/python3\" \"$0\" \"$@\"\n' '''\n", "/opt/a b/python3": ""},
        {"PATH": "/opt/bin"},
        None,
        ("/opt/a b/python3", "the first line of /opt/bin/torchrun"),
    ),
    "PATH": ({"/usr/bin/python3": ""}, {"PATH": "relative:/usr/bin"}, None, ("/usr/bin/python3", "python3 on PATH")),
    "pyenv": (
        {
            "/root/.pyenv/shims/python3": "#!/usr/bin/env bash\n",
            "/root/.pyenv/version": "3.11.7\n",
            "/root/.pyenv/versions/3.11.7/bin/python3": "",
        },
        {"PATH": "/root/.pyenv/shims"},
        None,
        ("/root/.pyenv/versions/3.11.7/bin/python3", "python3 on PATH"),
    ),
}


@pytest.mark.parametrize(("files", "variables", "configured", "expected"), PYTHONS.values(), ids=PYTHONS)
def test_which_python_and_why(
    files: dict[str, str], variables: dict[str, str], configured: str | None, expected: tuple[str, str]
) -> None:
    found = find.job_python(Files(files), variables, configured)
    assert isinstance(found, JobPython)
    assert (found.path, found.why) == expected


TOLD = {"/v/bin/python3": "", "/usr/bin/python3": "", "/v/bin/python": ""}
COMMANDS: dict[str, tuple[str, dict[str, str], tuple[str, str]]] = {
    "an interpreter, as written": ("/v/bin/python", {}, ("/v/bin/python", "the command")),
    "a name on PATH": ("python3", {}, ("/usr/bin/python3", "the command")),
    "torchrun of a venv": ("/v/bin/torchrun", {"/v/bin/torchrun": "#!/v/bin/python3\n"}, ("/v/bin/python3", "the command")),
    "a long path": (
        "/v/bin/torchrun",
        {"/v/bin/torchrun": "#!/bin/sh\n'''exec' /v/bin/python3 \"$0\" \"$@\"\n' '''\n"},
        ("/v/bin/python3", "the command"),
    ),
    "env": ("/j/train.py", {"/j/train.py": "#!/usr/bin/env python3\n"}, ("/usr/bin/python3", "the command")),
    "env -S": ("/j/train.py", {"/j/train.py": "#!/usr/bin/env -S python3 -u\n"}, ("/usr/bin/python3", "the command")),
    "sh": ("/j/x.sh", {"/j/x.sh": "#!/bin/sh\n"}, ("/usr/bin/python3", "python3 on PATH; the command does not tell")),
    "a program": ("/bin/srun", {"/bin/srun": "\x7fELF"}, ("/usr/bin/python3", "python3 on PATH; the command does not tell")),
    "nothing": ("/nosuch", {}, ("/usr/bin/python3", "python3 on PATH; the command does not tell")),
}


@pytest.mark.parametrize(("command", "files", "expected"), COMMANDS.values(), ids=COMMANDS)
def test_the_python_of_the_command(command: str, files: dict[str, str], expected: tuple[str, str]) -> None:
    found = find.job_python(Files(TOLD | files), {"PATH": "/usr/bin"}, None, command)
    assert isinstance(found, JobPython)
    assert (found.path, found.why) == expected


def test_the_command_is_behind_the_configuration_before_env() -> None:
    host = Files(TOLD | {"/venv/bin/python3": "", "/v/bin/torchrun": "#!/v/bin/python3\n"})
    for said in (None, "/usr/bin/python3"):  # it is not what will run
        assert find.job_python(host, {"VIRTUAL_ENV": "/venv"}, said, "/v/bin/torchrun") == JobPython(
            "/v/bin/python3", "the command", False, of_command=True
        )
    assert find.job_python(host, {}, "/usr/bin/python3") == JobPython("/usr/bin/python3", "--python", False, True)


@pytest.mark.parametrize(
    ("near", "variables", "path"),
    [
        ({"own": "/own/bin/python3"}, {}, "/own/bin/python3"),
        ({"own": "/own/bin/python3"}, {"VIRTUAL_ENV": "/venv"}, "/venv/bin/python3"),
        ({"own": "/own/bin/python3", "launcher": "/l/bin/python"}, {"VIRTUAL_ENV": "/venv"}, "/l/bin/python"),
        ({"own": "/gone/bin/python3"}, {}, "/usr/bin/python3"),
        ("rubbish", {}, "/usr/bin/python3"),
    ],
)
def test_pythons_that_are_nearer_than_path(near: object, variables: dict[str, str], path: str) -> None:
    files = dict.fromkeys(("/own/bin/python3", "/l/bin/python", "/venv/bin/python3", "/usr/bin/python3"), "")
    found = find.job_python(Files(TOLD | files), {"PATH": "/usr/bin"} | variables, None, None, near)
    assert isinstance(found, JobPython) and found.path == path


def test_a_link_is_kept_and_a_missing_python_is_not_replaced() -> None:
    host = Files(TOLD | {"/opt/mine": ""}, **{"link:/opt/mine": "/v/bin/python3"})
    assert find.job_python(host, {"PATH": "/usr/bin"}, None, "/opt/mine") == JobPython(
        "/opt/mine", "the command", False, of_command=True
    )
    host = Files(TOLD | {"/v/bin/torchrun": "#!/gone/bin/python3\n"})
    found = find.job_python(host, {"PATH": "/usr/bin"}, None, "/v/bin/torchrun")
    assert isinstance(found, Unavailable) and found.kind != "absent" and "/gone/bin/python3" in found.detail


def test_an_unread_command_does_not_give_way_to_python3_on_path() -> None:
    host = Files(TOLD | {"/v/bin/torchrun": ""}, **{"file:/v/bin/torchrun": Unavailable("timed out")})
    assert isinstance(find.job_python(host, {"PATH": "/usr/bin"}, None, "/v/bin/torchrun"), Unavailable)


def test_the_probe_looks_into_the_python_of_the_command() -> None:
    host = Files(TOLD, **{"env:": {"PATH": "/usr/bin"}, "config:": {"command": "/v/bin/python"}})
    found = probe(host)
    assert isinstance(found, Libraries) and found.python == JobPython("/v/bin/python", "the command", False, of_command=True)


@pytest.mark.parametrize("said", ["python9", "v/python3"])
def test_a_name_that_path_has_not_is_told(said: str) -> None:
    found = find.job_python(Files(TOLD, **{f"stat:{said}": Unavailable("malformed")}), {"PATH": "/usr/bin"}, said)
    assert isinstance(found, Unavailable) and found.kind is Kind.ABSENT
    assert found.detail == f"{said}, given as the job's Python, is neither on PATH nor a whole path"


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (TOLD, "python3 on PATH; VIRTUAL_ENV: no Python is reached in /gone"),
        ({"/gone/bin/python": ""}, "VIRTUAL_ENV"),
        ({"/conda/bin/python": ""}, "CONDA_PREFIX; VIRTUAL_ENV: no Python is reached in /gone"),
    ],
)
def test_an_environment_without_its_python_is_named(files: dict[str, str], why: str) -> None:
    variables = {"PATH": "/usr/bin", "VIRTUAL_ENV": "/gone", **({"CONDA_PREFIX": "/conda"} if "CONDA" in why else {})}
    found = find.job_python(Files(files), variables, None)
    assert isinstance(found, JobPython) and found.why == why


@pytest.mark.parametrize("configured", ["/nosuch/python", None])
def test_no_python(configured: str | None) -> None:
    assert isinstance(find.job_python(Files({"/usr/bin/python": ""}), {"PATH": "/usr/bin"}, configured), Unavailable)


def test_an_unreadable_python_does_not_give_way_to_another() -> None:
    host = Files({"/usr/bin/python3": ""}, {}, **{"stat:/venv/bin/python3": Unavailable("timed out")})
    found = find.job_python(host, {"VIRTUAL_ENV": "/venv", "PATH": "/usr/bin"}, None)
    assert isinstance(found, Unavailable) and found.kind == "not read"


def test_packages_of_debian_and_of_a_venv_that_sees_them() -> None:
    folders = {
        "/usr/lib": ["python3", "python3.12", "x86_64-linux-gnu"],
        "/usr/local/lib": ["python3.12", "python3.10"],
        "/venv/lib": ["python3.12"],
    }
    debian, unread = find.site_packages(
        Files({"/usr/bin/python3.12": ""}, folders, **{"link:/usr/bin/python3": "python3.12"}), "/usr/bin/python3", {}
    )
    assert unread is None
    assert debian[:2] == ("/usr/local/lib/python3.12/site-packages", "/usr/local/lib/python3.12/dist-packages")
    assert "/usr/lib/python3/dist-packages" in debian
    assert not any("3.10" in one for one in debian)
    config = "home = /usr/bin\ninclude-system-site-packages = true\nversion = 3.12.3\n"
    venv, _ = find.site_packages(Files({"/venv/pyvenv.cfg": config}, folders), "/venv/bin/python3", {"HOME": "/home/ada"})
    assert venv[0] == "/venv/lib/python3.12/site-packages"
    assert "/usr/lib/python3/dist-packages" in venv and "/home/ada/.local/lib/python3.12/site-packages" in venv


def test_a_folder_that_may_not_be_read_is_not_a_missing_torch() -> None:
    host = Files({}, {}, **{"dir:/venv/lib": Unavailable("denied")})
    packages, unread = find.site_packages(host, "/venv/bin/python3", {})
    assert unread == Unavailable("denied")
    torch = find.read_torch(host, packages, unread)
    assert isinstance(torch, Unavailable) and torch.kind == "not read"
    assert find.read_torch(host, packages) == Unavailable("absent", "no torch in any directory")


@pytest.mark.parametrize(
    ("text", "version", "cuda"),
    [
        ("__version__ = '2.13.0+cpu'\ndebug = False\ncuda: Optional[str] = None\n", "2.13.0+cpu", None),
        ("__version__ = '2.9.1+cu129'\ncuda: Optional[str] = '12.9'\n", "2.9.1+cu129", "12.9"),
        ('__version__ = "2.1.0"\ncuda = "11.8"\n', "2.1.0", "11.8"),
    ],
)
def test_version_py(text: str, version: str, cuda: str | None) -> None:
    found = find.read_torch(Files({"/site/torch/version.py": text}), ("/other", "/site"))
    assert isinstance(found, Torch)
    assert (found.version, found.cuda, found.path) == (version, cuda, "/site/torch")


def test_version_py_that_says_nothing() -> None:
    found = find.read_torch(Files({"/site/torch/version.py": "\x00rubbish"}), ("/site",))
    assert isinstance(found, Torch)
    assert isinstance(found.version, Unavailable) and isinstance(found.cuda, Unavailable)


def test_two_nccl_wheels_share_one_file() -> None:
    names = ["nvidia_nccl_cu12-2.27.5.dist-info", "nvidia_nccl_cu13-2.28.9.dist-info", "torch"]
    assert isinstance(find.wheels(Files({}, {"/site": names}), ("/site",))["/site"], Unavailable)
    assert find.wheels(Files({}, {"/site": names[:1]}), ("/site",))["/site"] == (2, 27, 5)


def test_a_mounted_root_has_no_environment() -> None:
    found = probe(Files({}, {}, **{"env:": Unavailable("another root")}))
    assert isinstance(found, Libraries)
    assert found.python == found.torch == found.nccl == Unavailable("another root")


@pytest.mark.parametrize("rubbish", [{}, {"files": [], "dirs": {}}, {"files": {}, "dirs": None}])
def test_a_helper_that_answers_rubbish(rubbish: Any) -> None:
    class Rubbish(Files):
        def ask(self, question: str) -> Answer:
            return rubbish if question.startswith("ask:elf?dirs") else super().ask(question)

    found = probe(Rubbish({"/usr/bin/python3": ""}, {}, **{"env:": {"PATH": "/usr/bin"}}))
    assert isinstance(found, Libraries)
    assert isinstance(found.nccl, Unavailable)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"mode": "bind", "nodes": [0]}, MemoryPolicy("bind", frozenset({0}))),
        ({"mode": 2, "nodes": [0]}, Unavailable("malformed", "ask:mempolicy")),
        (Unavailable("timed out"), Unavailable("timed out")),
    ],
)
def test_memory_policy(answer: Answer, expected: object) -> None:
    assert _policy(ReplayHost({"ask:mempolicy": answer})) == expected


NO_TORCH = Unavailable(Kind.ABSENT, "no torch")


@pytest.mark.parametrize(
    ("changes", "there"),
    [
        ({}, True),
        ({"torch": NO_TORCH}, True),  # the run then goes by that libnccl: one that could not tell is not healthy
        ({"torch": NO_TORCH, "nccl": ()}, False),
        ({"torch": NO_TORCH, "nccl": (), "incomplete": ("/opt/lib",)}, None),
        ({"torch": NO_TORCH, "nccl": Unavailable(Kind.DENIED)}, None),
        ({"torch": Unavailable(Kind.DENIED), "nccl": ()}, None),
    ],
)
def test_what_an_all_reduce_goes_by(changes: dict[str, Any], there: bool | None) -> None:
    facts = {"Libraries": libraries(**changes), "Pci": pci(), "Gpus": gpus()}
    assert presence.seen(facts).library is there

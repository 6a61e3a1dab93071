"""The Ansible collection against Ansible's own linters and builder."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.lab.whole import WHOLE
from tests.support.clusters import ssh

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not ssh.folder(), reason="needs ansible-core and ansible-lint in build/ansible"),
]
GET_PIP = ("20_3_4", "21_3_1", "24_2", "25_3", "26_0")  # the versions that ansible-test asks for, by its own version
GIVE_PIP = """\
import ensurepip, glob, os, sysconfig
for path in glob.glob({lent!r} + "/pip*"):
    os.symlink(path, os.path.join(sysconfig.get_path("purelib"), os.path.basename(path)))
try:
    import pip
except ImportError:
    ensurepip.bootstrap()
"""
# Half of the time goes to these (ansible-lint has yamllint in it); `python -m tests.lab whole` runs them, too.
LONG = () if WHOLE else ("pylint", "yamllint")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """The collection where Ansible looks for it, with a home that knows where pip comes from."""
    top = tmp_path_factory.mktemp("collections")
    where = top / "ansible_collections" / "netdoctor" / "cluster"
    shutil.copytree(ssh.COLLECTION, where, ignore=shutil.ignore_patterns("__pycache__"))
    cache = top / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True)
    # ansible-test would fetch get-pip from its own server, and run it once for each of its environments; the pip beside Ansible
    # is lent to them, compiled as it is.
    lent = next(pathlib.Path(ssh.folder()).parent.glob("lib/python3*/site-packages"), pathlib.Path("/nonexistent"))
    for version in GET_PIP:
        (cache / f"get_pip_{version}.py").write_text(GIVE_PIP.format(lent=str(lent)))
    yield where


def tool(where: pathlib.Path, *argv: str) -> subprocess.CompletedProcess[str]:
    top = where.parents[2]
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith("ANSIBLE_")},
        "PATH": f"{ssh.folder()}:{os.environ['PATH']}",
        "HOME": str(top),
        "ANSIBLE_COLLECTIONS_PATH": str(top),
        "NO_COLOR": "1",
    }
    return subprocess.run(argv, cwd=where, env=env, capture_output=True, text=True, timeout=500, check=False)


def test_ansible_lint_production(installed: pathlib.Path) -> None:
    if not shutil.which("ansible-lint", path=ssh.folder()):
        pytest.skip("needs ansible-lint in build/ansible")
    done = tool(installed, "ansible-lint", "--nocolor", "--profile", "production")
    assert done.returncode == 0 and "0 failure(s), 0 warning(s)" in done.stdout + done.stderr, done.stdout + done.stderr


def test_ansible_test_sanity(installed: pathlib.Path) -> None:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    left_out = [word for name in LONG for word in ("--skip-test", name)]
    done = tool(installed, "ansible-test", "sanity", "--requirements", "--python", python, "--color", "no", *left_out)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert 'Running sanity test "validate-modules"' in done.stdout + done.stderr
    ignored = {line.split(" #")[0] for p in installed.glob("tests/sanity/ignore-*.txt") for line in p.read_text().splitlines()}
    assert ignored == {"plugins/modules/preflight_info.py validate-modules:missing-gplv3-license"}


def test_it_is_built(installed: pathlib.Path) -> None:
    done = tool(installed, "ansible-galaxy", "collection", "build", "--output-path", str(installed.parents[2]))
    assert done.returncode == 0 and (installed.parents[2] / "netdoctor-cluster-0.1.0.tar.gz").is_file(), done.stderr


def test_netdoctor_is_found_where_copy_finds_it(installed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """~ and files/ beside the playbook; a name in neither is told before the look."""
    (tmp_path / "files").mkdir()
    for one in (installed.parents[2] / "home.pyz", tmp_path / "files" / "beside.pyz", tmp_path / "a,b: c.pyz"):
        one.touch()
    role = {"name": "netdoctor.cluster.audit", "tasks_from": "prepare.yml"}
    names = ["~/home.pyz", "beside.pyz", f"{tmp_path}/a,b: c.pyz", "nowhere.pyz"]
    tasks = [{"ansible.builtin.include_role": role, "vars": {"audit_pyz": name}} for name in names]
    play = {"hosts": "localhost", "gather_facts": False, "vars": {"audit_reports": f"{tmp_path}/r"}, "tasks": tasks}
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    told = [f"{tmp_path}/play.yml", "-e", f"ansible_python_interpreter={sys.executable}"]
    done = tool(installed, "ansible-playbook", "-i", "localhost,", "-c", "local", *told)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "no file" in line]
    assert said and all("no file nowhere.pyz on this machine" in line for line in said), done.stdout + done.stderr

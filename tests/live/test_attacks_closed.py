"""The job's user against a Python that root runs itself, because nobody else can reach it: everything of it must be root's.

`netdoctor/host/owned.py` looks; `test_attacks_code.py` has the Pythons that others can reach.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netdoctor.allreduce import runner
from netdoctor.host.trust import of_others
from tests.support.machines.native import gcc
from tests.support.namespaces.attacked import EVE, STUB, SYSTEM, Scene, all_reduce, scenes, site_of
from tests.support.namespaces.served import served

pytestmark = [pytest.mark.live, pytest.mark.root]
if os.geteuid() != 0:
    pytest.skip("needs root: it is root's netdoctor that is attacked", allow_module_level=True)


@pytest.fixture
def scene() -> Iterator[Scene]:
    with scenes() as made:
        yield made


def test_a_closed_python_that_is_all_roots_runs_in_isolation(scene: Scene) -> None:
    """root's conda below /root: nobody else can reach it, and nobody else has written a file of it."""
    python = scene.venv()
    scene.root.chmod(0o700)
    run = all_reduce(python)
    assert run.ranks and not run.notes, run


def test_a_link_of_roots_that_leads_nowhere_is_no_refusal(scene: Scene) -> None:
    """Debian's packages link to each other; only root can make what is not there."""
    python = scene.venv()
    scene.root.chmod(0o700)
    (site_of(python) / "jquery").symlink_to(scene.root / "javascript/jquery")
    assert all_reduce(python).ranks
    (site_of(python) / "d3").symlink_to(scene.eve / "d3")
    assert not all_reduce(python).ranks


def a_file_in_a_package(scene: Scene, python: Path) -> None:
    file = site_of(python) / "torch/distributed.py"
    file.write_text(scene.evil("mark") + file.read_text())
    os.chown(file, EVE, EVE)


def a_file_that_a_group_writes(scene: Scene, python: Path) -> None:
    file = site_of(python) / "torch/distributed.py"
    file.write_text(scene.evil("mark") + file.read_text())
    file.chmod(0o664)


def a_link_to_the_users(scene: Scene, python: Path) -> None:
    (scene.eve / "helper.py").write_text(scene.evil("mark"))
    scene.give(scene.eve)
    (site_of(python) / "numpy").symlink_to(scene.eve)


def a_pth_file(scene: Scene, python: Path) -> None:
    (scene.eve / "eve_startup.py").write_text(scene.evil("mark"))
    (site_of(python) / "eve.pth").write_text(f"{scene.eve}\nimport eve_startup\n")


def a_home_of_the_users(scene: Scene, python: Path) -> None:
    home = scene.eve / "py"
    version = site_of(python).parent.name
    (home / "bin").mkdir(parents=True)
    (home / "lib" / version / "lib-dynload").mkdir(parents=True)
    (home / "lib" / version / "os.py").write_text(scene.evil("mark"))
    scene.give(scene.eve)
    (python.parents[1] / "pyvenv.cfg").write_text(f"home = {home}/bin\n")


def a_setting_beside_the_interpreter(scene: Scene, python: Path) -> None:
    a_home_of_the_users(scene, python)
    settings = python.parents[1] / "pyvenv.cfg"
    settings.rename(python.parent / "pyvenv.cfg")


def an_interpreter_of_the_users(scene: Scene, python: Path) -> None:
    mine = scene.eve / "python3"
    mine.write_text(f"#!/bin/sh\nid -u > {scene.marks}/mark\n")
    mine.chmod(0o755)
    scene.give(scene.eve)
    python.unlink()
    python.symlink_to(mine)


def a_library_beside_the_standard_library(scene: Scene, python: Path) -> None:
    """As a conda has libssl.so beside lib/python3.X: its modules are linked with it."""
    base, version = scene.root / "base", site_of(python).parent.name
    (base / "bin").mkdir(parents=True)
    (base / "lib").mkdir()
    subprocess.run(["cp", "-R", f"/usr/lib/{version}", base / "lib"], check=True)
    for config in (base / "lib" / version).glob("config-*"):  # links into the system's folder of libraries
        shutil.rmtree(config)
    subprocess.run(["cp", os.path.realpath(SYSTEM), base / "bin" / version], check=True)
    library = base / "lib/libssl.so.3"
    library.write_bytes(scene.c("mark").read_bytes())
    os.chown(library, EVE, EVE)
    python.unlink()
    python.symlink_to(base / "bin" / version)
    (python.parents[1] / "pyvenv.cfg").write_text(f"home = {base}/bin\n")


def planted(scene: Scene, file: Path, name: str = "mark") -> None:
    """Root's own module runs eve's words."""
    file.write_text(scene.evil(name) + file.read_text())


def a_link_through_the_users_folder(scene: Scene, python: Path) -> None:
    """It leads back to what is root's, until eve turns it."""
    file = site_of(python) / "torch/distributed.py"
    (scene.eve / "way").symlink_to(file.rename(file.with_name("real.py")))
    file.symlink_to(scene.eve / "way")


def a_link_of_the_users(scene: Scene, python: Path) -> None:
    file = site_of(python) / "torch/distributed.py"
    file.symlink_to(file.rename(file.with_name("real.py")))
    os.lchown(file, EVE, EVE)


def an_access_list_for_the_user(scene: Scene, python: Path) -> None:
    file = site_of(python) / "torch/distributed.py"
    planted(scene, file)
    entries = [(0x01, 6, -1), (0x02, 6, EVE), (0x04, 4, -1), (0x10, 6, -1), (0x20, 4, -1)]  # posix_acl_xattr.h
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, bits, who & 0xFFFFFFFF) for tag, bits, who in entries)
    os.setxattr(file, "system.posix_acl_access", acl)


def a_folder_that_a_group_may_write(scene: Scene, python: Path) -> None:
    folder = site_of(python) / "torch"
    os.chown(folder, 0, EVE)
    folder.chmod(0o2775)


def a_second_name_that_the_user_may_write(scene: Scene, python: Path) -> None:
    file = site_of(python) / "torch/distributed.py"
    planted(scene, file)
    os.link(file, scene.marks / "second")  # the same inode
    (scene.marks / "second").chmod(0o666)
    (scene.marks / "second").rename(scene.eve / "second")


def a_second_name_with_the_user(scene: Scene, python: Path) -> None:
    """Root's all the same: eve may not write it."""
    os.link(site_of(python) / "torch/distributed.py", scene.eve / "second")


def a_file_system_of_the_users(scene: Scene, python: Path) -> None:
    """Done by the test: what it mounts must go again."""
    (site_of(python) / "mounted").mkdir()


def searching(path: str, *, needed: bool = False) -> Callable[[Scene, Path], None]:
    """A library of root's in whose search path, or in whose needs, is a place that is not root's."""

    def attack(scene: Scene, python: Path) -> None:
        folder, site = scene.eve / "lib", site_of(python)
        folder.mkdir()
        evil = scene.c("mark").rename(folder / "libevil.so")
        source = scene.root / "ext.c"
        source.write_text("int ext;\n")
        if needed:  # without a soname the linker writes down what it was given
            how = ["-Wl,--no-as-needed", str(evil)]
        else:
            how = ["-Wl,--no-as-needed", f"-L{folder}", "-levil", f"-Wl,-rpath,{path.format(eve=scene.eve)}"]
        subprocess.run([gcc(), "-shared", "-fPIC", "-o", site / "torch/ext.so", source, *how], check=True, timeout=60)
        scene.give(scene.eve)
        torch = site / "torch/distributed.py"
        load = "import ctypes, contextlib\nwith contextlib.suppress(OSError):\n    ctypes.CDLL(__file__[:-14] + 'ext.so')\n"
        torch.write_text(load + torch.read_text())

    return attack


def a_home_behind_a_link(scene: Scene, python: Path) -> None:
    """getpath.py goes up from the link, and finds nothing: then it takes what was compiled in."""
    (scene.root / "bin").symlink_to("/usr/bin")
    (scene.root / "deep").mkdir()
    (scene.root / "deep/link").symlink_to("/usr/bin")
    (python.parents[1] / "pyvenv.cfg").write_text(f"home = {scene.root}/deep/link\n")


def a_script_for_an_interpreter(scene: Scene, python: Path) -> None:
    base, version = scene.root / "base", site_of(python).parent.name
    (base / "bin").mkdir(parents=True)
    (base / "lib").mkdir()
    (base / "lib" / version).symlink_to(f"/usr/lib/{version}")
    (base / "bin" / version).write_text(f"#!/usr/bin/env sh\nid -u > {scene.marks}/mark\n")
    (base / "bin" / version).chmod(0o755)
    (python.parents[1] / "pyvenv.cfg").unlink()
    python.unlink()
    python.symlink_to(base / "bin" / version)


def named(name: str, attack: Callable[[Scene, Path], None]) -> Callable[[Scene, Path], None]:
    attack.__name__ = name
    return attack


# Why each is refused; "": it runs, and the attack comes to nothing.
CLOSED: tuple[tuple[Callable[[Scene, Path], None], str], ...] = (
    (a_file_in_a_package, "belongs to uid 64001"),
    (a_file_that_a_group_writes, "is writable by others"),
    (a_link_through_the_users_folder, "eve belongs to uid"),
    (a_link_of_the_users, "distributed.py belongs to uid"),
    (an_access_list_for_the_user, "is writable by others"),
    (a_folder_that_a_group_may_write, "torch is writable by others"),
    (a_second_name_that_the_user_may_write, "is writable by others"),
    (a_second_name_with_the_user, ""),
    (a_file_system_of_the_users, "is on a file system (fuse"),
    (named("a_search_path_of_the_users", searching("{eve}/lib")), "which has the loader look there"),
    (named("a_search_path_that_is_not_there_yet", searching("{eve}/later:/usr/lib")), "which has the loader look there"),
    (named("a_search_path_below_a_folder_for_all", searching("/tmp/netdoctor-nobody/lib")), "tmp is writable by everybody"),
    (named("a_search_path_that_the_loader_expands", searching("{eve}/$LIB")), "has the loader look in"),
    (named("a_library_that_is_needed_by_its_path", searching("", needed=True)), "which has the loader look there"),
    (a_home_behind_a_link, "has no os.py"),
    (a_script_for_an_interpreter, "is a script"),
    (a_link_to_the_users, "eve belongs to uid"),
    (a_pth_file, ""),  # it is not followed
    (a_home_of_the_users, "eve belongs to uid"),
    (a_setting_beside_the_interpreter, "beside the interpreter"),
    (a_library_beside_the_standard_library, "libssl.so.3 belongs to uid"),
    (an_interpreter_of_the_users, "eve belongs to uid"),
)


@pytest.mark.parametrize(("attack", "words"), CLOSED, ids=[one.__name__ for one, _ in CLOSED])
def test_a_closed_python_with_a_file_of_others_is_refused(
    scene: Scene, attack: Callable[[Scene, Path], None], words: str
) -> None:
    python = scene.venv()
    attack(scene, python)
    scene.root.chmod(0o700)
    if attack is a_file_system_of_the_users:
        with served(site_of(python) / "mounted", EVE):
            run = all_reduce(python)
    else:
        run = all_reduce(python)
    assert scene.ran() == {}
    assert bool(run.ranks) is not bool(words), run
    if words:
        assert "refused: root does not run" in run.reason and "is closed to others" in run.reason
        assert words in run.reason


@pytest.mark.parametrize("path", ["{0}/root/./venv", "{0}/root/x/../venv", "{0}/root//venv"])
def test_a_path_that_is_read_in_two_ways(scene: Scene, path: str) -> None:
    """By the kernel with its links followed, by Python's own search for its folders without."""
    scene.venv()
    (scene.root / "x").symlink_to(scene.eve)
    scene.root.chmod(0o700)
    run = all_reduce(path.format(scene.root.parent) + "/bin/python3")
    assert not run.ranks, run


# Variables that others set: root's own loader, libc, OpenSSL and Python take code from more than any list has


def closed(scene: Scene, more: str = "") -> Path:
    """A Python that nobody but root can reach; its torch does `more`, and leaves its environment and folder."""
    python = scene.venv()
    file = site_of(python) / "torch/distributed.py"
    tell = f"import json, os\njson.dump([os.getcwd(), dict(os.environ)], open({str(scene.root)!r} + '/told', 'w'))\n"
    file.write_text(tell + more + file.read_text())
    scene.root.chmod(0o700)
    return python


def told(scene: Scene) -> tuple[str, dict[str, str]]:
    folder, variables = json.loads((scene.root / "told").read_text())
    return folder, variables


NAMES = (
    *("LD_AUDIT", "OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES", "GCONV_PATH", "LOCPATH", "NLSPATH", "SSL_CERT_FILE"),
    *(
        "PYTHONHOME",
        "PYTHONSTARTUP",
        "PYTHONUSERBASE",
        "PYTHONPLATLIBDIR",
        "PYTHONPYCACHEPREFIX",
        "PYTHONEXECUTABLE",
    ),
    *("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "TMPDIR", "TRITON_CACHE_DIR", "CC", "CXX", "BASH_ENV", "ENV", "PERL5LIB"),
    *("GLIBC_TUNABLES", "MALLOC_CONF", "RES_OPTIONS", "HOSTALIASES", "VIRTUAL_ENV", "CONDA_PREFIX", "A_NAME_OF_TOMORROW"),
)


def test_no_variable_of_the_users_reaches_roots_python(scene: Scene) -> None:
    value = f"{scene.eve}/x"
    run = all_reduce(closed(scene), **dict.fromkeys(NAMES, value), PATH=f"{scene.eve}:/bin", NCCL_IB_HCA="mlx5_0")
    _, seen = told(scene)
    assert run.ranks and "eve" not in json.dumps(seen) and seen["NCCL_IB_HCA"] == "mlx5_0", run


def test_no_auditor_of_the_users_is_loaded_into_root(scene: Scene) -> None:
    auditor = scene.c("auditor.so", "unsigned la_version(unsigned v) { return v; }")
    subprocess.run([SYSTEM, "-c", ""], env={"LD_AUDIT": str(auditor)}, check=True, timeout=60)
    assert scene.ran() == {"auditor.so": 0}, "the attack itself works on any Python of root's"
    (scene.marks / "auditor.so").unlink()
    assert all_reduce(closed(scene), LD_AUDIT=str(auditor)).ranks and scene.ran() == {}


def test_the_folder_that_netdoctor_was_started_in(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty part of LD_LIBRARY_PATH is the working directory (ld.so(8))."""
    scene.c("libmark.so")
    monkeypatch.chdir(scene.eve)
    load = "import ctypes, contextlib\nwith contextlib.suppress(OSError):\n    ctypes.CDLL('libmark.so')\n"
    run = all_reduce(closed(scene, load), LD_LIBRARY_PATH="/usr/lib:")
    assert run.ranks and told(scene)[0] == "/" and scene.ran() == {}


def test_a_conf_file_of_the_users_in_roots_home(scene: Scene) -> None:
    home = scene.root / "home"
    home.mkdir()
    (home / ".nccl.conf").write_text(f"NCCL_NET_PLUGIN={scene.eve}/evil.so\n")
    os.chown(home / ".nccl.conf", EVE, EVE)
    run = all_reduce(closed(scene), HOME=str(home))
    assert not run.ranks and ".nccl.conf belongs to uid" in run.reason, run


def test_a_path_of_the_users_is_not_imported_from(scene: Scene) -> None:
    run = all_reduce(closed(scene), PYTHONPATH=str(scene.eve))
    assert not run.ranks and "PYTHONPATH: " in run.reason and "eve belongs to uid" in run.reason, run


@pytest.mark.parametrize("name", ["LD_LIBRARY_PATH", "NCCL_NET_PLUGIN", "UCX_MODULE_DIR", "FI_PROVIDER_PATH", "NCCL_CONF_FILE"])
def test_a_variable_of_the_job_that_leads_to_the_user(scene: Scene, name: str) -> None:
    run = all_reduce(closed(scene), **{name: f"{scene.eve}/x"})
    assert not run.ranks and f"{name}=" in run.reason, run


def test_a_package_on_the_path_with_a_file_of_the_users(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is root's, and so is the Python: netdoctor's own."""
    monkeypatch.setattr(runner, "out_of_reach", lambda *_: "python3 is closed to others")
    folder = scene.root / "path"
    folder.mkdir()
    subprocess.run(["cp", "-R", STUB, folder], check=True)

    python = f"{sys.prefix}/bin/python"
    assert all_reduce(python, PYTHONPATH=str(folder)).ranks
    file = folder / "torch/distributed.py"
    file.write_text(scene.evil("mark") + file.read_text())
    os.chown(file, EVE, EVE)
    run = all_reduce(python, PYTHONPATH=str(folder))
    assert not run.ranks and "PYTHONPATH: " in run.reason and "belongs to uid" in run.reason and scene.ran() == {}


@pytest.mark.parametrize("name", ["libnvidia-ml.so.1", "glibc-hwcaps"])
def test_a_library_of_the_users_in_a_folder_of_roots(scene: Scene, name: str) -> None:
    folder = scene.root / "lib"
    folder.mkdir()
    shutil.copy("/usr/lib/os-release", folder / "libroot.so")
    (folder / "liblink.so").symlink_to("libroot.so")
    (folder / "libgone.so").symlink_to("/usr/lib/nobody/there.so")
    assert of_others(str(folder)) is None
    (folder / name).mkdir()
    os.chown(folder / name, EVE, EVE)
    assert f"{name} belongs to uid" in (of_others(str(folder)) or "")
    (folder / name).rmdir()
    (folder / "liblater.so").symlink_to(scene.eve / "later.so")
    assert "eve belongs to uid" in (of_others(f"/usr/lib:{folder}") or "")


def test_a_file_system_that_says_what_its_user_likes(scene: Scene) -> None:
    folder = scene.root / "mounted"
    folder.mkdir()
    assert of_others(str(folder)) is None
    with served(folder, EVE):
        assert folder.stat().st_uid == 0 and f"on a file system (fuse.silent) of uid {EVE}" in (of_others(str(folder)) or "")
    with served(folder, 0):  # root's own mount
        assert of_others(str(folder)) is None

"""The job's user against root's netdoctor: code.  Each attack plants a mark that tells as which uid it ran; none runs as 0.

`test_attacks_files.py` has the others: files, processes, memory, secrets.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

import pytest

from netdoctor.allreduce.runner import Session
from netdoctor.facts.runs import Run
from netdoctor.host.programs import kept
from tests.support.namespaces.attacked import EVE, SMALL, STUB, SYSTEM, Scene, all_reduce, scenes, site_of
from tests.support.sources import ROOT

pytestmark = [pytest.mark.live, pytest.mark.root]
if os.geteuid() != 0:
    pytest.skip("needs root: it is root's netdoctor that is attacked", allow_module_level=True)

BEGIN = f"import sys; sys.path.append({str(ROOT)!r}); from netdoctor.__main__ import main; main()"
NETDOCTOR = (sys.executable, "-I", "-c", BEGIN)
LOOK = (*NETDOCTOR, "preflight", "--no-allreduce", "-q")


@pytest.fixture
def scene() -> Iterator[Scene]:
    with scenes() as made:
        yield made


# In the job's Python: run by somebody without rights


def a_file_of_the_users_in_roots_package(scene: Scene) -> Run:
    python = scene.venv()
    file = site_of(python) / "torch/distributed.py"
    file.write_text(scene.evil("torch") + file.read_text())
    os.chown(file, EVE, EVE)
    return all_reduce(python)


def a_pth_to_a_folder_of_the_users(scene: Scene) -> Run:
    python = scene.venv()
    (scene.eve / "eve_startup.py").write_text(scene.evil("pth"))
    (site_of(python) / "eve.pth").write_text(f"{scene.eve}\nimport eve_startup\n")
    return all_reduce(python)


def an_editable_install_that_torch_loads(scene: Scene) -> Run:
    python = scene.venv()
    (scene.eve / "nd_backend.py").write_text(scene.evil("entry point"))
    site = site_of(python)
    (site / "eve.pth").write_text(f"{scene.eve}\n")
    (site / "nd_backend-1.dist-info").mkdir()
    (site / "nd_backend-1.dist-info/entry_points.txt").write_text("[torch.backends]\nx = nd_backend:x\n")
    (site / "nd_backend-1.dist-info/METADATA").write_text("Name: nd-backend\nVersion: 1\n")
    torch = site / "torch/__init__.py"  # as torch >= 2.5 does (torch/__init__.py, _import_device_backends)
    loads = (
        "from importlib.metadata import entry_points\nfor one in entry_points(group='torch.backends'):\n    import importlib\n"
    )
    torch.write_text(torch.read_text() + loads + "    importlib.import_module(one.value.partition(':')[0])\n")
    return all_reduce(python)


def a_copied_interpreter_with_its_home_at_the_users(scene: Scene) -> Run:
    python = scene.venv("--copies")
    version = site_of(python).parent.name
    home = scene.eve / "py"
    for folder in ("bin", "lib"):
        (home / folder).mkdir(parents=True)
    (home / "bin/python3").touch()
    subprocess.run(["cp", "-R", f"/usr/lib/{version}", home / "lib"], check=True)
    file = home / "lib" / version / "socket.py"
    file.write_text(file.read_text() + scene.evil("home"))
    scene.give(scene.eve)
    (python.parents[1] / "pyvenv.cfg").write_text(f"home = {home}/bin\ninclude-system-site-packages = false\n")
    return all_reduce(python)


def a_sitecustomize_on_the_path(scene: Scene) -> Run:
    (scene.eve / "sitecustomize.py").write_text(scene.evil("sitecustomize"))
    return all_reduce(scene.venv(), PYTHONPATH=str(scene.eve))


def a_torch_on_the_path(scene: Scene) -> Run:
    subprocess.run(["cp", "-R", STUB, scene.eve], check=True)
    file = scene.eve / "torch/__init__.py"
    file.write_text(scene.evil("torch") + file.read_text())
    scene.give(scene.eve)
    return all_reduce(scene.venv(), PYTHONPATH=str(scene.eve))


def a_library_for_the_loader(scene: Scene) -> Run:
    return all_reduce(scene.venv(), LD_PRELOAD=str(scene.c("libevil.so")))


def a_libnccl_of_the_users(scene: Scene) -> Run:
    return all_reduce(SYSTEM, library=str(scene.c("libnccl.so.2")))


JOB: tuple[Callable[[Scene], Run], ...] = (
    a_file_of_the_users_in_roots_package,
    a_pth_to_a_folder_of_the_users,
    an_editable_install_that_torch_loads,
    a_copied_interpreter_with_its_home_at_the_users,
    a_sitecustomize_on_the_path,
    a_torch_on_the_path,
    a_library_for_the_loader,
    a_libnccl_of_the_users,
)


@pytest.mark.parametrize("attack", JOB, ids=[one.__name__ for one in JOB])
def test_the_jobs_python_is_not_roots(scene: Scene, attack: Callable[[Scene], Run]) -> None:
    run = attack(scene)
    ran = scene.ran()
    assert ran, f"the attack itself came to nothing: {run}"
    assert 0 not in ran.values(), ran
    assert "which has no rights" in " ".join(run.notes), run.notes


def test_the_job_may_say_that_it_is_roots_own(scene: Scene) -> None:
    """A container whose only user is root, with a virtual environment of uid 1000: `--user root`."""
    from netdoctor.allreduce.runner import Code

    python = scene.venv()
    scene.give(python.parents[1])
    with closing(Session(Code(str(python), trust=True), {"PATH": os.environ["PATH"]}, lock=False)) as session:
        run = session.run(SMALL)
    assert not run.notes and run.ranks, run


# In root's helpers and in root's own process


def seen_by_helpers(variables: Mapping[str, str]) -> dict[str, str]:
    return kept(variables)[0]


@pytest.mark.parametrize(
    "value", ["{eve}/$LIB", "{eve}/${LIB}", "$ORIGIN/../{eve}", "{eve}/$PLATFORM", "{eve}/late", "relative", "{eve}"]
)
@pytest.mark.parametrize("name", ["LD_LIBRARY_PATH", "LD_PRELOAD"])
def test_the_loader_of_a_helper_looks_nowhere_at_the_users(scene: Scene, name: str, value: str) -> None:
    value = value.replace("{eve}", str(scene.eve))
    found = seen_by_helpers({name: f"{value}:/usr/lib", "PATH": "/bin"}).get(name, "")
    assert "eve" not in found and "$" not in found and found in ("/usr/lib", "relative:/usr/lib"), found
    assert name == "LD_PRELOAD" or found == "/usr/lib"


@pytest.mark.parametrize(
    "name",
    [
        *("OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES", "GCONV_PATH", "LOCPATH", "NLSPATH", "LD_AUDIT", "LD_PROFILE"),
        *("IBV_DRIVERS", "RDMAV_DRIVERS", "FI_PROVIDER_PATH", "UCX_MODULE_DIR", "NCCL_NET_PLUGIN", "NCCL_ENV_PLUGIN"),
        *("NCCL_TUNER_PLUGIN", "NCCL_CONF_FILE", "OMP_TOOL_LIBRARIES", "CUDA_INJECTION64_PATH", "PYTHONPATH", "PYTHONHOME"),
        *("BASH_ENV", "PERL5LIB", "HOSTALIASES", "RES_OPTIONS", "MALLOC_CONF", "GLIBC_TUNABLES", "SSLKEYLOGFILE", "HOME"),
        *("NVIDIA_CUDA_LIBRARY", "VDPAU_DRIVER_PATH", "P11_KIT_MODULE", "A_NAME_OF_TOMORROW"),
    ],
)
def test_no_variable_leads_roots_helpers_to_the_user(scene: Scene, name: str) -> None:
    assert name not in seen_by_helpers({name: f"{scene.eve}/x", "PATH": "/bin"})


def test_openssl_loads_nothing_of_the_users_into_root(scene: Scene) -> None:
    module = scene.c("evilprov.so", "int OSSL_provider_init(void *a, void *b, void **c, void **d) { return 0; }")
    conf = scene.eve / "ossl.cnf"
    conf.write_text(f"openssl_conf = a\n[a]\nproviders = b\n[b]\nevil = c\n[c]\nmodule = {module}\nactivate = 1\n")
    base = {"PATH": os.environ["PATH"], "OPENSSL_CONF": str(conf)}
    subprocess.run([sys.executable, "-I", "-c", "import hashlib; hashlib.new('md5')"], env=base, check=False, timeout=60)
    assert scene.ran() == {"evilprov.so": 0}, "the attack itself works on any Python of root's"
    (scene.marks / "evilprov.so").unlink()
    done = subprocess.run(LOOK, env=base, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 3, 4), done.stderr
    assert scene.ran() == {}


def test_a_submodule_of_a_plugin_is_the_users(scene: Scene) -> None:
    from netdoctor.plugins import load

    site = scene.root / "site"
    (site / "nd_pack").mkdir(parents=True)
    (site / "nd_pack-1.dist-info").mkdir()
    (site / "nd_pack-1.dist-info/entry_points.txt").write_text("[netdoctor.plugins]\nx = nd_pack.inner\n")
    (site / "nd_pack/__init__.py").write_text("")
    (site / "nd_pack/inner.py").write_text(scene.evil("inner"))
    os.chown(site / "nd_pack/inner.py", EVE, EVE)
    sys.path.append(str(site))
    try:
        got = load(dropin_dir="/nonexistent", search=[str(site)])
    finally:
        sys.path.remove(str(site))
    assert scene.ran() == {}
    assert [f.message for r in got.results for f in r.findings if f"uid {EVE}" in f.message], got.results


@pytest.mark.parametrize("how", ["variable", "configuration"])
def test_a_folder_of_checks_of_the_users(scene: Scene, how: str) -> None:
    (scene.eve / "mine.py").write_text(scene.evil("check"))
    (scene.eve / "c.yaml").write_text(f"checks_dir: {scene.eve}\n")
    scene.give(scene.eve)
    names = {"variable": {"NETDOCTOR_CHECKS_DIR": str(scene.eve)}, "configuration": {"NETDOCTOR_CONFIG": f"{scene.eve}/c.yaml"}}
    environment = {"PATH": os.environ["PATH"], **names[how]}
    done = subprocess.run([*NETDOCTOR, "list"], env=environment, capture_output=True, text=True, timeout=60, check=False)
    subprocess.run(LOOK, env=environment, capture_output=True, timeout=120, check=False)
    assert scene.ran() == {}, done

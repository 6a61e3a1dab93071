"""Where the live tests run under root: in a copy of the checkout that root alone can change, in the file system of "/".

They lay empty folders over /tmp and /run, look at overlays of "/" (which shows nothing that is mounted below), act as other
users, and hold netdoctor to its rule that root runs nothing that others can change.  So a checkout below /tmp, in a home that
is closed to others or on a volume of its own cannot be where they run; one that none of this concerns stays where it is.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from netdoctor.host.trust import trusted

ROOT: Final = Path(__file__).parents[3]
PLACED: Final = "NETDOCTOR_TESTS_PLACED_FROM"  # in the copy: the checkout
PLACES: Final = tuple(map(Path, ("/opt", "/usr/local", "/")))  # no test mounts over these
_OVER: Final = tuple(map(Path, ("/dev", "/mnt", "/proc", "/run", "/sys", "/tmp", "/var/lib", "/var/tmp", "/root/.cache")))
_LEFT_OUT: Final = frozenset({".git", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"})


def unfit(folder: Path) -> str:
    """Why root's live tests cannot run in `folder`; "" where they can."""
    if reason := trusted(str(folder)):
        return f"others can change it: {reason}"
    if folder.stat().st_dev != Path("/").stat().st_dev:
        return 'it is not in the file system of "/"'
    if any(folder.is_relative_to(one) for one in _OVER):
        return "tests mount over it"
    if closed := next((one for one in (folder, *folder.parents) if not one.stat().st_mode & 1), None):
        return f"{closed} is closed to other users"
    # The scripts of the labs, and the lines "#!" of the programs in .venv.
    return "" if re.fullmatch(r"[\w./+-]+", str(folder)) else "its path needs quotes"


@contextmanager
def placed() -> Iterator[Path]:
    """The copy, with its virtual environments; gone at the end."""
    base = next((one for one in PLACES if os.access(one, os.W_OK) and not unfit(one)), None)
    if base is None:
        raise OSError(f"no place for the tests: {'; '.join(f'{one}: {unfit(one)}' for one in PLACES)}")
    with tempfile.TemporaryDirectory(prefix="netdoctor-tests-", dir=base) as name:
        folder = Path(name)
        folder.chmod(0o755)
        target = folder / "checkout"
        target.mkdir(mode=0o755)
        # Without owners, access lists and write bits of others, but with the times that byte code goes by.  Others may work in
        # the checkout meanwhile: a temporary file of theirs that is gone before it is read is nothing but tar's status 1.
        parts = [one.name for one in ROOT.iterdir() if one.name not in _LEFT_OUT]
        pack = ["tar", "--create", "--format=posix", f"--directory={ROOT}", "--", *parts]
        unpack = ["tar", "--extract", "--no-same-owner", "--no-same-permissions", f"--directory={target}"]
        with subprocess.Popen(pack, stdout=subprocess.PIPE) as packing:
            subprocess.run(unpack, stdin=packing.stdout, check=True, umask=0o022)
        if packing.returncode not in (0, 1):
            raise OSError(f"{ROOT} cannot be copied: tar exits with {packing.returncode}")
        for setting in (*target.glob("*/pyvenv.cfg"), *target.glob("build/*/pyvenv.cfg")):
            _move(setting.parent, target)
        yield target


def _move(environment: Path, target: Path) -> None:
    """Let programs and editable installs of a virtual environment mean the copy."""
    site = "lib/python*/site-packages"
    for pattern in ("bin/*", f"{site}/*.pth", f"{site}/__editable__*.py"):
        for file in environment.glob(pattern):
            if file.is_file() and not file.is_symlink() and bytes(ROOT) in (text := file.read_bytes()):
                file.write_bytes(_renamed(text, target))
    # Byte code is taken by the time and size of its source.
    for cache in environment.glob(f"{site}/__pycache__/__editable__*"):
        cache.unlink()


def _renamed(text: bytes, target: Path) -> bytes:
    """`text` with the copy in the place of the checkout, and of no other folder whose name begins like it."""
    return re.sub(re.escape(bytes(ROOT)) + rb"(?![\w.-])", lambda _: bytes(target), text)


def run(arguments: Sequence[str], here: Path) -> int:
    """pytest's exit code for `arguments` given in the folder `here`, run in a copy."""

    def there(text: str) -> str:
        return os.fsdecode(_renamed(os.fsencode(text), target))

    with placed() as target:
        # What is written to an absolute path (--junitxml) is wanted there; what is read is the copy's.
        words = [there(word) if Path(word.partition("::")[0]).exists() else word for word in arguments]
        command = [there(sys.executable), "-m", "pytest", *words]
        variables = {name: there(value) for name, value in os.environ.items()} | {PLACED: str(ROOT)}
        folder = there(str(here)) if here.is_relative_to(ROOT) else target
        with subprocess.Popen(command, cwd=folder, env=variables) as child:
            # Ctrl-C reaches both by the terminal.  Whoever ends this process means the tests; the copy is removed after them.
            before = [signal.signal(signal.SIGINT, signal.SIG_IGN), signal.signal(signal.SIGTERM, lambda *_: child.terminate())]
            code = child.wait()
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
    return code


def cache() -> Path:
    """The folder for what is made once and kept: build/ of the checkout itself."""
    return Path(os.environ.get(PLACED) or ROOT) / "build"

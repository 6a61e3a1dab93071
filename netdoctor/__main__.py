"""`netdoctor` and `python -m netdoctor`: the command line, whose import alone takes long enough for a Ctrl-C."""

import gc
import os
import sys

OLDEST = (3, 10)  # requires-python of pyproject.toml, which nobody reads where a clone is run as it lies


def keep_to_ourselves() -> None:
    """As root: the libraries in this process see no variable that may name code.  os.environ stays: it is what is judged."""
    from netdoctor.environment import kept_by_root

    for name in os.environ:
        if kept_by_root(name) is None:
            os.unsetenv(name)


def main() -> None:
    """`netdoctor.cli.main.main`; what interrupts it where no report can be made is one line and 130, no traceback."""
    if sys.version_info < OLDEST:
        wanted, is_ = (".".join(str(number) for number in version[:2]) for version in (OLDEST, sys.version_info))
        sys.stderr.write(f"netdoctor needs Python >= {wanted}; {sys.executable} is {is_}: name another\n")
        sys.exit(2)
    gc.set_threshold(250_000, 20, 20)  # a look makes fewer objects and no garbage: looking for it took 7 % of its time
    try:
        if os.geteuid() == 0:
            keep_to_ourselves()
        from netdoctor.cli.main import main as command

        command()
    except (MemoryError, OSError) as error:  # of the import: the command's own are told by it
        sys.stderr.write(f"netdoctor: inconclusive: too little memory or too few descriptors to start ({error})\n")
        sys.exit(4)
    except (ImportError, AttributeError) as error:
        why = in_the_way(error)  # no walrus: a Python older than 3.8 must read this file to the end
        if not why:
            raise
        sys.stderr.write(f"netdoctor: {why}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("netdoctor: interrupted by SIGINT\n")
        sys.exit(130)
    finally:
        gc.freeze()  # nor when Python ends


def in_the_way(error: Exception) -> str:
    """Why what is imported here is not what was meant, and what mends it; "" where that is a defect of ours."""
    folders = [os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    package = sys.modules.get("netdoctor")
    if not hasattr(package, "__version__"):
        ours = os.path.dirname(os.path.abspath(__file__))
        other = os.path.abspath(next(iter(getattr(package, "__path__", ())), ours))
        if other != ours:  # a folder that Python looks into before ours: of a clone it is the parent, too
            by = "take its folder out of PYTHONPATH" if os.path.dirname(other) in folders else "start it in another folder"
            return f"{other} hides the netdoctor that lies in {ours}: {by}"
        # On PyPI another project has the import name: its file came in the place of ours.
        again = "pip uninstall netdoctor, then install ours again"
        return f"another project's netdoctor lies over this one ({error}): {again}"
    from netdoctor.process.imported import NEEDED, hidden_by

    hides = hidden_by(error)  # as above
    if hides:
        return hides
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if missing in NEEDED:
        how = "install netdoctor with pip, which brings it, or run the one file (make pyz); in a clone: make preflight"
        return f"{sys.executable} has no {missing}: {how}"
    return ""


def leave_folder() -> None:
    """`python -m` puts the working folder first in sys.path: what somebody has there by the name of a module is the job's to
    import, not ours.  This package knows where it lies."""
    if not getattr(sys.flags, "safe_path", False):  # -P, -I, PYTHONSAFEPATH; of Python 3.11
        del sys.path[0]


if __name__ == "__main__":
    leave_folder()
    main()

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
    gc.set_threshold(50_000, 20, 20)  # imports leave no garbage: looking for it after each 700 objects took 7 % of a look
    try:
        if os.geteuid() == 0:
            keep_to_ourselves()
        from netdoctor.cli.main import main as command

        command()
    except (MemoryError, OSError) as error:  # of the import: the command's own are told by it
        sys.stderr.write(f"netdoctor: inconclusive: too little memory or too few descriptors to start ({error})\n")
        sys.exit(4)
    except ImportError as error:
        if hasattr(sys.modules.get("netdoctor"), "__version__"):
            raise
        # On PyPI another project has the import name: its file came in the place of ours.
        sys.stderr.write(f"netdoctor: another project's netdoctor lies over this one ({error}): pip uninstall netdoctor, ")
        sys.stderr.write("then install ours again\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("netdoctor: interrupted by SIGINT\n")
        sys.exit(130)


def leave_folder() -> None:
    """`python -m` puts the working folder first in sys.path: what somebody has there by the name of a module is the job's to
    import, not ours.  This package knows where it lies."""
    if not getattr(sys.flags, "safe_path", False):  # -P, -I, PYTHONSAFEPATH; of Python 3.11
        del sys.path[0]


if __name__ == "__main__":
    leave_folder()
    main()

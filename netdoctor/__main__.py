"""`netdoctor` and `python -m netdoctor`: the command line, whose import alone takes long enough for a Ctrl-C."""

import sys


def main() -> None:
    """`netdoctor.cli.main.main`; what interrupts it where no report can be made is one line and 130, no traceback."""
    try:
        from netdoctor.cli.main import main as command

        command()
    except KeyboardInterrupt:
        sys.stderr.write("netdoctor: interrupted by SIGINT\n")
        sys.exit(130)


if __name__ == "__main__":
    main()

"""`python -m netdoctor` is the command `netdoctor`."""

from netdoctor.cli.main import main

main()

"""``netdoctor snapshot --import-tree DIR``."""

from __future__ import annotations

import sys

from netdoctor import __version__
from netdoctor.cli import setup


def run(tree: str, output: str, config_file: str | None, checks_dir: str | None, pseudonyms: bytes | None) -> int:
    """0, or 2 with a line that says what is wrong; `pseudonyms` is what other names are made with, None: none."""
    from netdoctor.snapshot.import_tree import TreeError, import_tree
    from netdoctor.snapshot.snapshot import dumps

    try:
        config = setup.configuration(config_file, {"checks_dir": checks_dir})
        specs, _ = setup.load_checks(config, ())
        taken = import_tree(tree, config.as_answer(), specs, setup.policy_data(config), __version__)
    except (setup.UsageError, TreeError) as error:
        print(f"netdoctor: {error}", file=sys.stderr)
        return 2
    if pseudonyms is not None:
        from netdoctor.snapshot.pseudonyms import pseudonymise

        taken = pseudonymise(taken, pseudonyms)
    return setup.write(output, dumps(taken), snapshot=True)

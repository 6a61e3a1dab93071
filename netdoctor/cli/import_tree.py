"""``netdoctor snapshot --import-tree DIR``."""

from __future__ import annotations

from netdoctor import __version__
from netdoctor.cli import deliver, setup
from netdoctor.cli.options import Options
from netdoctor.config.load import Config
from netdoctor.model import CheckResult


def run(options: Options, tree: str, output: str, pseudonyms: bytes | None) -> int:
    """0, or 2 with a line that says what is wrong; `pseudonyms` is what other names are made with, None: none."""
    try:
        config = setup.configuration(options)
    except setup.UsageError as error:
        return deliver.refuse(error, options)
    return setup.judged(config, None, lambda lost: _import(options, config, tree, output, pseudonyms, lost))


def _import(
    options: Options, config: Config, tree: str, output: str, pseudonyms: bytes | None, lost: CheckResult | None
) -> int:
    from netdoctor.snapshot.import_tree import TreeError, import_tree
    from netdoctor.snapshot.snapshot import dumps

    try:
        specs, _ = setup.load_checks(config, (), lost=lost)
        taken = import_tree(tree, config.as_answer(), specs, setup.policy_data(config), __version__)
    except (setup.UsageError, TreeError) as error:
        return deliver.refuse(error, options)
    if pseudonyms is not None:
        from netdoctor.snapshot.pseudonyms import pseudonymise

        taken = pseudonymise(taken, pseudonyms)
    return deliver.write(output, dumps(taken), snapshot=True)

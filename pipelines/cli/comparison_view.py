"""Show a comparison of runs: a table, a page or JSON."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from qat_lib.errors import ConfigError
from qat_lib.files.output_files import check_output
from qat_lib.files.whole_files import write_text
from qatline.components.support.credentials import check_address, scrub
from qatline.pipelines.cli.options import print_json
from qatline.pipelines.comparison.find_runs import RunChoice, find_runs
from qatline.pipelines.comparison.lines import comparison_view


def show_comparison(choice: RunChoice, *, html: Path | None, as_json: bool) -> None:
    """Print the comparison, and write its page if asked to.

    Raises:
        ConfigError: there is no such run, or the page can't be written.
        TrackingError: a store can't be read.
    """
    if choice.uri is not None:
        check_address(choice.uri, "--tracking-uri")
    if html is not None:
        check_output(html)
    runs = find_runs(choice, details=html is not None)
    if html is not None:
        from qatline.pipelines.comparison.page import render_comparison

        text = render_comparison(runs, source=_source(choice))
        try:
            write_text(html, text)
        except OSError as error:
            raise ConfigError(f"Could not write {html}: {error}") from error
    if as_json:
        print_json({"runs": [run.to_dict() for run in runs]})
        return
    console = Console(highlight=False)
    console.print(comparison_view(runs))
    if html is not None:
        console.print(f"Wrote {html}", soft_wrap=True)


def _source(choice: RunChoice) -> str:
    if choice.experiment is not None:
        return f"experiment {choice.experiment}"
    return scrub(choice.uri or str(choice.output.absolute()))

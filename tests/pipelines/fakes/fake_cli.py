"""``qatline`` with ``fake_pipeline``'s quick pipeline as the main one."""

from qatline.pipelines.cli import run as cli_run
from qatline.pipelines.cli import sweep_views
from qatline.pipelines.cli.main import main

if __name__ == "__main__":
    cli_run.run_command.__kwdefaults__["pipeline"] = "fake_pipeline:fake_pipeline"
    sweep_views.sweep_command.__kwdefaults__["pipeline"] = "fake_pipeline:fake_pipeline"
    main()

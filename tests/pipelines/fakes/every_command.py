"""Run every ``qatline`` command without the extras' packages.

Print what each says as JSON. ``--block`` blocks them in an environment that has them. The working
directory receives the files that are asked for.
"""

import importlib.abc
import importlib.util
import json
import sys
from pathlib import Path


class Block(importlib.abc.MetaPathFinder):
    """Makes what the extras bring look as if it were not installed."""

    names = (
        *(
            "tensorflow",
            "keras",
            "tf2onnx",
            "onnx_ir",
            "onnx",
            "onnxruntime",
            "openvino",
            "tensorrt",
            "cuda",
        ),
        *(
            "sklearn",
            "PIL",
            "kfp",
            "mlflow",
            "boto3",
            "botocore",
            "google",
            "kfp_server_api",
        ),
        *("kubernetes", "urllib3", "scipy", "pandas", "requests"),
        *("kserve", "tritonclient", "prometheus_client", "optuna"),
    )

    def find_spec(self, name, path=None, target=None):
        """Fail as Python does for a package that is not there."""
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


if "--block" in sys.argv:
    real = importlib.util.find_spec
    importlib.util.find_spec = lambda n, p=None: (
        None if n.partition(".")[0] in Block.names else real(n, p)
    )
    sys.meta_path.insert(0, Block())

import numpy as np  # noqa: E402
import typer.main  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from qatline.pipelines.cli.main import app  # noqa: E402
from qatline.pipelines.cluster import connection  # noqa: E402

connection._probe = lambda address, token: None  # a server that answers
for name in ("m.keras", "m.onnx", "m.engine"):
    Path(name).write_bytes(b"")
np.savez("d.npz", x=np.ones((4, 2)), y=np.arange(4) % 2)
run = Path("runs/r")
run.mkdir(parents=True)
(run / "run.json").write_text('{"run_id": "r", "pipeline": "x"}')
(run / "config.yaml").write_text("seed: 1")
(run / "logs").mkdir()
(run / "logs" / "pipeline.log").write_text("")
(run / "report.html").write_text("")
(run / "tracking.json").write_text('{"uri": "sqlite:///x.db", "experiment_id": "1", "run_id": "a"}')
HOST = ["--host", "http://127.0.0.1:1"]
COMMANDS = {
    "run": [],
    "check": [],
    "compile": [],
    "components": [],
    "compare": [],
    "sync": ["r"],
    "ui": ["r"],
    "report": ["r"],
    "init": ["project"],
    "doctor": [],
    "resume": ["none"],
    "sweep": ["c.yaml", "--over", "seed=1,2"],
    "registry": ["--name", "x"],
    "promote": ["r", "--name", "x"],
    "rollback": ["--name", "x"],
    "schedule": ["--local", "--set", "registry.name=x"],
    "runs list": [],
    "runs show": ["r"],
    "runs logs": ["r"],
    "runs gc": ["--status", "failed"],
    "optimize": ["m.keras", "--data", "d.npz", "-o", "out"],
    "quantize": ["m.keras"],
    "export": ["m.keras", "-o", "x.onnx"],
    "verify": ["m.onnx"],
    "analyze": ["m.onnx"],
    "build-engine": ["m.onnx"],
    "bench-engine": ["m.engine"],
    "check-engine": ["m.engine", "--onnx", "m.onnx"],
    "diagnose": ["m.keras", "--data", "d.npz"],
    "search": ["m.keras", "--data", "d.npz", "--max-drop", "1%"],
    "finetune": ["m.keras", "-o", "x.keras", "--data", "d.npz"],
    "evaluate": ["m.keras", "--data", "d.npz"],
    "predict": ["m.keras", "d.npy"],
    "package": ["m.onnx", "-o", "p"],
    "serve": ["m.onnx"],
    "publish": ["runs/r", "s3://bucket/r"],
    "config show": [],
    "config schema": [],
    "cluster submit": HOST,
    "cluster wait": ["x", *HOST],
    "cluster image": ["-o", "image"],
    "cluster runtime": ["-o", "runtime.yaml"],
    "cluster schedule": ["x", "--cron", "0 0 2 * * *", *HOST],
    "cluster unschedule": ["x", *HOST],
    "cluster pause": ["x", *HOST],
    "cluster resume": ["x", *HOST],
    "cluster show": ["x", *HOST],
    "cluster schedules": HOST,
}


def leaves(command, prefix=""):
    """Yield the full name of each command below a group."""
    for name, each in command.commands.items():
        yield from (
            leaves(each, f"{prefix}{name} ") if hasattr(each, "commands") else [prefix + name]
        )


said = {"left out": sorted(set(leaves(typer.main.get_command(app))) ^ set(COMMANDS))}
for name, arguments in COMMANDS.items():
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*name.split(), *arguments])
    said[name] = [done.exit_code, done.stderr]
json.dump(said, sys.stdout)

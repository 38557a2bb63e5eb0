"""``qatline package``, ``serve`` and ``publish``: from an engine to a service."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from qat_lib.errors import BackendUnavailableError, ConfigError
from qat_lib.support.extras import install_hint, missing_packages
from qatline.pipelines.cli.command import DEFAULT_CONFIG, ConfigChoice, command
from qatline.pipelines.cli.options import JsonOption, RunsDirOption, print_json

if TYPE_CHECKING:
    from qatline.components.serving.package import Package
    from qatline.components.serving.server import ServerOptions
    from qatline.components.serving.service import Service
    from qatline.components.serving.sources import ModelSource
    from qatline.pipelines.config.run_config import RunConfig

TargetChoice: TypeAlias = Literal["plain", "triton", "ovms", "kserve"]
PackageBackendChoice: TypeAlias = Literal["auto", "tensorrt", "openvino", "onnxruntime", "python"]

ChampionOption = Annotated[
    str | None,
    typer.Option(
        "--champion",
        metavar="NAME",
        help="Use the champion of this registered model.",
        show_default=False,
    ),
]


def add_serving_commands(app: typer.Typer) -> None:
    """Add the commands."""
    for name, function in (
        ("package", package_model),
        ("serve", serve_model),
        ("publish", publish_files),
    ):
        app.command(name, rich_help_panel="Serving")(command(function))


def package_model(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="SOURCE",
            help="Engine, ONNX file, or a run's id or folder.",
            show_default="the latest run",
        ),
    ] = None,
    output: Annotated[
        str,
        typer.Option("--output-dir", "-o", help="New folder, or s3://bucket/folder to publish to."),
    ] = "package",
    champion: ChampionOption = None,
    target: Annotated[TargetChoice, typer.Option(help="Server; plain is qatline serve.")] = "plain",
    backend: Annotated[
        PackageBackendChoice, typer.Option(help="Backend that computes; python is for Triton.")
    ] = "auto",
    name: Annotated[
        str, typer.Option(help="Name of the served model.", show_default="the source's")
    ] = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="Triton: an ensemble takes raw data and returns answers.")
    ] = False,
    image: Annotated[
        str | None, typer.Option(help="Image of the server.", show_default=False)
    ] = None,
    storage_uri: Annotated[
        str, typer.Option(help="KServe: address of the package.", show_default="-o on S3")
    ] = "",
    max_batch_size: Annotated[int, typer.Option(min=1, help="Largest batch of requests.")] = 32,
    choice: ConfigChoice = DEFAULT_CONFIG,
    runs_dir: RunsDirOption = None,
    json_: JsonOption = False,
) -> None:
    """Package a model with its labels, preprocessing, card and client for a server.

    The package of an unchanged model has the same bytes.
    """
    from qatline.components.serving.assemble import PackageOptions, assemble_package
    from qatline.components.storage.published import publish_folder

    is_remote = "://" in output
    options = PackageOptions(
        target=target,
        backend=backend,
        name=name,
        raw=raw,
        image=image,
        storage_uri=storage_uri or (output if is_remote else ""),
        max_batch_size=max_batch_size,
    )
    with (
        _source(source, champion, choice, runs_dir) as found,
        tempfile.TemporaryDirectory() as place,
    ):
        folder = Path(place) / "package" if is_remote else Path(output)
        package = assemble_package(found, folder, options)
        if is_remote:
            publish_folder(folder, output)
    _show(package, output, as_json=json_)


def _show(package: Package, output: str, *, as_json: bool) -> None:
    from qatline.components.serving.kubernetes import KSERVE

    model = package.model
    if as_json:
        print_json(
            {
                "package": output,
                "target": package.target,
                "backend": package.backend,
                "model": model.serves,
                "image": package.server.get("image", ""),
                "files": dict(package.files),
            }
        )
        return
    typer.echo(f"Wrote {output}: {model.name} for {package.target}, {package.backend}")
    image = package.server.get("image", "")
    is_remote = "://" in output
    if package.target == "plain":
        typer.echo(f"Serve it:  qatline serve {output}")
    elif KSERVE in package.files:
        typer.echo(f"On a cluster:  kubectl apply -f {KSERVE}, with the file in {output}")
    elif is_remote:
        typer.echo(f"Serve the folder models/ in it with {image}")
    else:
        start = {
            "triton": "tritonserver --model-repository=/models",
            "ovms": "--config_path /models/config.json --rest_port 8000",
        }[package.target]
        models = Path(output).absolute() / "models"
        typer.echo(f"Serve it:  docker run --rm -p 8000:8000 -v {models}:/models \\")
        typer.echo(f"             {image} {start}")
    if model.decoding is None:
        typer.echo("It records no decoding: clients return the outputs themselves.")


@contextmanager
def _source(
    source: str | None, champion: str | None, choice: ConfigChoice, runs_dir: Path | None
) -> Iterator[ModelSource]:
    """Yield the source in the arguments, or the latest run.

    Raises:
        ConfigError: they name both a source and a champion, or the run has not finished.
    """
    from dataclasses import fields, replace

    from qatline.components.artifacts import Promotion
    from qatline.components.report import ReportFolders
    from qatline.components.serving.sources import file_source, run_source
    from qatline.pipelines.run.folder import find_or_latest

    if source is not None and champion is not None:
        raise ConfigError(
            "Expected either an engine, an ONNX file or a run, or --champion NAME. Received: both."
        )
    if champion is not None:
        with tempfile.TemporaryDirectory() as place:
            yield _champion(choice.load(runs_dir), champion, Path(place))
        return
    if source is not None and Path(source).is_file():
        yield file_source(Path(source))
        return
    config = choice.load(runs_dir)
    run = find_or_latest(Path(config.output), source)
    if run.settle().status != "finished":
        raise ConfigError(
            f"Expected a finished run. Received: {run.run_id}, which is {run.settle().status}. "
            f"Finish it: qatline resume {run.run_id}"
        )
    own = run.config()
    outputs = {field.name: run.artifacts_dir / field.name for field in fields(ReportFolders)}
    card = Promotion(run.artifacts_dir / "promotion").file(Promotion.CARD)
    found = run_source(
        own.registry.name or own.model.name or "model",
        ReportFolders(**outputs),
        card.read_text(encoding="utf-8") if card.is_file() else "",
    )
    yield replace(found, origin={"run": run.run_id})


def _champion(config: RunConfig, name: str, folder: Path) -> ModelSource:
    """Return the champion's files as a source.

    Raises:
        ConfigError: the registry has no such model, or it has no champion.
    """
    from qatline.components.registry.access import current_champion
    from qatline.components.registry.package import CARD, fetch_champion
    from qatline.components.serving.sources import ModelSource
    from qatline.components.support.model_names import served_name
    from qatline.pipelines.run.registered import named_registry

    registry = named_registry(config, name)
    version = current_champion(registry)
    if version is None:
        raise ConfigError(f"Expected a champion of {name!r}; it has none. See: qatline registry.")
    fetched = fetch_champion(registry, version, folder)
    card = folder / CARD
    return ModelSource(
        name=served_name(name),
        graph=fetched.graph,
        card=card.read_text(encoding="utf-8") if card.is_file() else "",
        origin={"model": name, "version": version.number},
    )


def serve_model(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="PACKAGE",
            help="Package, s3://bucket/folder of one, engine, ONNX file, or run.",
            show_default="the latest run",
        ),
    ] = None,
    champion: ChampionOption = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of REST and /metrics.")] = 8080,
    grpc_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of gRPC; 0: none.")] = 8081,
    waiting: Annotated[int, typer.Option(min=1, help="Most requests that wait.")] = 256,
    reload_seconds: Annotated[
        float, typer.Option(min=0.1, help="Time between looks for a new champion.")
    ] = 30.0,
    choice: ConfigChoice = DEFAULT_CONFIG,
    runs_dir: RunsDirOption = None,
) -> None:
    """Serve a model by the Open Inference Protocol, with raw data in and answers out.

    SIGTERM and Ctrl-C end it after the running requests.
    """
    from qatline.components.client.client import PACKAGE
    from qatline.components.serving.package import read_package
    from qatline.components.serving.server import ServerOptions, Watch, serve
    from qatline.components.serving.service import Service
    from qatline.components.storage.published import fetch_published

    if missing_packages(["kserve"]):
        raise BackendUnavailableError(
            f"The server needs the package kserve. {install_hint(['kserve'])}"
        )
    options = ServerOptions(port=port, grpc_port=grpc_port, waiting=waiting)
    with tempfile.TemporaryDirectory() as place:
        # A package is served as it is. Engines, ONNX files and runs are packaged into a temporary
        # folder first.
        folder, watch = Path(place) / "package", None
        if source is not None and champion is None and "://" in source:
            fetch_published(source, folder)
            service = Service.open(read_package(folder))
        elif source is not None and champion is None and (Path(source) / PACKAGE).is_file():
            service = Service.open(read_package(Path(source)))
        elif champion is not None and source is None:
            follower = ChampionFollower(choice.load(runs_dir), champion)
            service = follower.first()
            watch = Watch(look=follower.look, seconds=reload_seconds)
        else:
            service = _packaged(source, champion, choice, runs_dir, folder)
        _greet(service, options)
        serve(service, options, watch=watch)


def _packaged(
    source: str | None,
    champion: str | None,
    choice: ConfigChoice,
    runs_dir: Path | None,
    folder: Path,
) -> Service:
    """Package a source temporarily and return its service."""
    from qatline.components.serving.assemble import PackageOptions, assemble_package
    from qatline.components.serving.package import read_package
    from qatline.components.serving.service import Service

    if source is not None and Path(source).is_dir() and not (Path(source) / "run.json").is_file():
        read_package(Path(source))  # refuses it, and says what a package is
    with _source(source, champion, choice, runs_dir) as found:
        return Service.open(assemble_package(found, folder, PackageOptions()))


class ChampionFollower:
    """The champion of a registered model as a service, packaged again when it moves."""

    def __init__(self, config: RunConfig, name: str) -> None:
        self._config, self._name = config, name
        self._version = 0

    def first(self) -> Service:
        """Return the service of the present champion."""
        from qatline.components.serving.assemble import PackageOptions, assemble_package
        from qatline.components.serving.service import Service

        with tempfile.TemporaryDirectory() as place:
            (fetched := Path(place) / "champion").mkdir()
            found = _champion(self._config, self._name, fetched)
            package = assemble_package(found, Path(place) / "package", PackageOptions())
            service = Service.open(package)
        self._version = found.origin["version"]
        return service

    def look(self) -> Service | None:
        """Return the service of another champion; None while it is the same."""
        from qatline.components.registry.access import current_champion
        from qatline.pipelines.run.registered import named_registry

        champion = current_champion(named_registry(self._config, self._name))
        if champion is None or champion.number == self._version:
            return None
        return self.first()


def _greet(service: Service, options: ServerOptions) -> None:
    model = service.package.model
    typer.echo(f"Serving {model.name} ({service.engine.manifest.backend}); stop it with Ctrl-C")
    typer.echo(f"REST     http://localhost:{options.port}/v2/models/{model.name}/infer")
    if options.grpc_port:
        typer.echo(f"gRPC     localhost:{options.grpc_port}")
    typer.echo(f"Metrics  http://localhost:{options.port}/metrics")


def publish_files(
    folder: Annotated[Path, typer.Argument(help="Package, run folder, report, or any folder.")],
    location: Annotated[str, typer.Argument(help="s3://bucket/folder, or a path.")],
    json_: JsonOption = False,
) -> None:
    """Store a folder's files in S3, and last a listing with the SHA-256 of each.

    Readers such as qatline serve s3://... take the listed files only, and verify them.
    """
    from qatline.components.storage.published import publish_folder

    count = publish_folder(folder, location)
    if json_:
        print_json({"location": location, "files": count})
    else:
        typer.echo(f"Published {count} files to {location}")

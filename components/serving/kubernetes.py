"""KServe's resources of a package: InferenceService and ServingRuntime."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from qat_lib.errors import ConfigError
from qatline.components.serving.package import MODELS, ServedModel

KSERVE = "kserve.yaml"
_MOUNTED = "/mnt/models"
_HTTP, _GRPC = 8080, 9000
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,48}[a-z0-9])?")


def write_kserve(
    folder: Path, model: ServedModel, *, server: str, image: str, storage_uri: str, gpu: bool
) -> None:
    """Write ``kserve.yaml`` with an InferenceService and its ServingRuntime.

    Args:
        folder: folder of the package.
        model: the model.
        server: ``triton`` or ``ovms``.
        image: image of the server.
        storage_uri: where the package will lie, such as ``s3://bucket/digits``.
        gpu: whether the server needs a GPU.

    Raises:
        ConfigError: Kubernetes does not accept the name, or the address is missing.
    """
    import kserve
    from kubernetes import client

    name = model.name.lower().replace("_", "-").replace(".", "-")
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "Expected a name of at most 50 characters that starts with a letter, for Kubernetes "
            f"(--name). Received: {model.name!r}."
        )
    if "://" not in storage_uri:
        raise ConfigError(
            "Expected the address that KServe loads the package from, such as s3://bucket/digits "
            f"or pvc://models/digits (--storage-uri). Received: {storage_uri!r}."
        )
    # KServe mounts the folder of the address itself: servers look for models right in it.
    uri = f"{storage_uri.rstrip('/')}/{MODELS}"
    arguments = {
        "triton": [
            "tritonserver",
            f"--model-store={_MOUNTED}",
            f"--http-port={_HTTP}",
            f"--grpc-port={_GRPC}",
            "--allow-http=true",
            "--allow-grpc=true",
        ],
        "ovms": [
            f"--config_path={_MOUNTED}/config.json",
            f"--rest_port={_HTTP}",
            f"--port={_GRPC}",
        ],
    }[server]
    limits = {"cpu": "2", "memory": "4Gi", **({"nvidia.com/gpu": "1"} if gpu else {})}
    container = client.V1Container(
        name="kserve-container",
        image=image,
        args=arguments,
        resources=client.V1ResourceRequirements(
            limits=limits, requests={"cpu": "1", "memory": "2Gi"}
        ),
        ports=[
            # One port: Knative refuses containers with more.
            client.V1ContainerPort(container_port=_HTTP, protocol="TCP"),
        ],
        readiness_probe=client.V1Probe(
            http_get=client.V1HTTPGetAction(path="/v2/health/ready", port=_HTTP), period_seconds=5
        ),
    )
    kind = f"qatline-{server}"
    runtime = kserve.V1alpha1ServingRuntime(
        api_version="serving.kserve.io/v1alpha1",
        kind="ServingRuntime",
        metadata=client.V1ObjectMeta(name=f"{name}-runtime"),
        spec=kserve.V1alpha1ServingRuntimeSpec(
            supported_model_formats=[
                kserve.V1alpha1SupportedModelFormat(name=kind, version="1", auto_select=False)
            ],
            protocol_versions=["v2", "grpc-v2"],
            containers=[container],
        ),
    )
    service = kserve.V1beta1InferenceService(
        api_version="serving.kserve.io/v1beta1",
        kind="InferenceService",
        metadata=client.V1ObjectMeta(name=name),
        spec=kserve.V1beta1InferenceServiceSpec(
            predictor=kserve.V1beta1PredictorSpec(
                model=kserve.V1beta1ModelSpec(
                    model_format=kserve.V1beta1ModelFormat(name=kind, version="1"),
                    runtime=f"{name}-runtime",
                    protocol_version="v2",
                    storage_uri=uri,
                )
            )
        ),
    )
    api: Any = client.ApiClient()
    documents = [api.sanitize_for_serialization(each) for each in (runtime, service)]
    # A container's field that KServe's class requires, and its servers ignore here.
    documents[1]["spec"]["predictor"]["model"].pop("name", None)
    (folder / KSERVE).write_text(yaml.safe_dump_all(documents, sort_keys=False), encoding="utf-8")

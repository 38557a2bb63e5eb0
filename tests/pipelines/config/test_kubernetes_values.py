"""Values in Kubernetes notation: what is taken, what is refused."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from qatline.pipelines.config import kubernetes_values as values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86_400), ("15", 15), (15, 15), (1, 1)],
)
def test_parse_seconds_takes_units(text: Any, seconds: int) -> None:
    assert values.parse_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["0", "0h", -1, "2 h", "h", "1.5h", "2w", "", True, "24856d", None]
)
def test_parse_seconds_refuses_what_is_none(text: Any) -> None:
    with pytest.raises(ValueError, match="expected a duration such as 90s, 30m, 2h, 1d"):
        values.parse_seconds(text)


def test_amount_compares_units() -> None:
    assert values.amount("500m") < values.amount("0.6")
    assert values.amount("1G") < values.amount("1Gi") < values.amount("2G")


@pytest.mark.parametrize(
    ("kind", "taken", "refused"),
    [
        (values.ObjectName, ["data", "my-claim.v2"], ["", "Data", "-a", "a/b", "a" * 254]),
        (values.MountPath, ["/data", "/a/b"], ["", "data", "/", "//", "/a:b"]),
        (
            values.Image,
            ["python", "registry.example:5000/a/b:1.0", f"a/b@sha256:{'0' * 64}"],
            ["", "A", "a b", "a@sha256:1", "-a"],
        ),
        (
            values.BucketAddress,
            ["s3://bucket", "s3://bucket/a/b", "minio://b/a", "gs://b"],
            ["", "bucket/a", "/a", "s3://", "s3:///a", "s3://b/a?x=y", "s3://me:pw@b/a"],
        ),
        (values.SecretKey, ["mlflow/password", "a.b/c_d"], ["mlflow", "Mlflow/a", "a/b/c", "a/"]),
        (
            values.WebAddress,
            ["https://hooks.example/run", "http://slack.com.example/services/x"],
            [
                "hooks.example",
                "ftp://hooks.example",
                "https://",
            ],
        ),
        (values.Variable, ["A", "a_1"], ["1A", "A-B", ""]),
        (values.ResourceName, ["nvidia.com/gpu"], ["gpu", "nvidia.com/", "a/b/c"]),
    ],
)
def test_values_are_checked(kind: Any, taken: list[str], refused: list[str]) -> None:
    adapter: TypeAdapter[str] = TypeAdapter(kind)
    assert [adapter.validate_python(text) for text in taken] == taken
    for text in refused:
        with pytest.raises(ValidationError):
            adapter.validate_python(text)


def test_mount_path_is_normalized() -> None:
    adapter: TypeAdapter[str] = TypeAdapter(values.MountPath)
    assert adapter.validate_python("/data/../mnt//x/") == "/mnt/x"


def test_secret_key_error_hides_the_value() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(values.SecretKey).validate_python("hunter2")
    assert "hunter2" not in caught.value.errors(include_input=False)[0]["msg"]

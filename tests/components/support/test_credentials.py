"""Secrets are refused in addresses and config values, masked in texts."""

import html
import json
import re
import time
from urllib.parse import quote, quote_plus

import pytest

from qat_lib.errors import ConfigError
from qatline.components.support.credentials import (
    check_address,
    check_variables,
    is_secret_name,
    mask_values,
    scrub,
    secret_problem,
)

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJwbGFudGVkIn0.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("see http://me:pw@host/x and postgresql://u:p%40@db:5432/m", "see http://***@host/x and postgresql://***@db:5432/m"),
        ("http://host/a@b, mail me@x", "http://host/a@b, mail me@x"),
        ("http://u:p@ss@h/x", "http://***@h/x"),
        ("http://u:pa/ss@h:1/x", "http://***@h:1/x"),
        ("'http://u:pa?s#s@h'", "'http://***@h'"),
        ("https://token@github.com/x", "https://***@github.com/x"),
        ("http://h:5000/x?a=b#c", "http://h:5000/x?a=b#c"),
        ("https://b/k?X-Amz-Credential=AK%2F&X-Amz-Signature=ab&v=1", "https://b/k?X-Amz-Credential=***&X-Amz-Signature=***&v=1"),
        ("https://b/k?sv=1&sig=ab%3D", "https://b/k?sv=1&sig=***"),
        ("sig=3 key=4", "sig=3 key=4"),
        ("connect(password='a b', user='me')", "connect(password='***', user='me')"),
        ("{'password': 'abc', \"token\": \"x\", 'a': 'b'}", "{'password': '***', \"token\": \"***\", 'a': 'b'}"),
        ("Authorization: Bearer abcdefghijk", "Authorization: Bearer ***"),
        ("'authorization': 'Basic YWJjOmRlZg=='", "'authorization': 'Basic ***'"),
        (f"got {JWT}.", "got ***."),
        ("url: https://b/k?token=ab", "url: https://b/k?token=***"),
        ("X-API-Key: v1, X-Trace: v2", "X-API-Key: ***, X-Trace: v2"),
        ("Authorization: Token 0123456789", "Authorization: Token ***"),
        ("aws_secret_access_key = /v+x==", "aws_secret_access_key = ***"),
        ("DB_PASS=x COMPASS=x", "DB_PASS=*** COMPASS=x"),
        (r'{\"password\": \"a b\"}', r'{\"password\": \"***\"}'),
        ("id AKIAIOSFODNN7EXAMPLE, sk-proj-0123456789abcdefghij", "id ***, ***"),
        ("post https://hooks.slack.com/services/T0/B0/x1 failed", "post *** failed"),
        ("options.api_key: expected no secret", "options.api_key: expected no secret"),
        ("{DB_PASS: secret-name/key}", "{DB_PASS: secret-name/key}"),
        ("/run/token: Permission denied, s3://b if token == x", "/run/token: Permission denied, s3://b if token == x"),
        ("class_token='learned', num_tokens=3", "class_token='learned', num_tokens=3"),
    ],
)  # fmt: skip
def test_scrub_masks_secrets_and_nothing_else(text: str, scrubbed: str) -> None:
    assert scrub(text, {}) == scrubbed


def test_scrub_masks_values_of_secret_variables() -> None:
    environment = {
        "MY_API_KEY": "abcdefgh",
        "LONGER_SECRET": "abcdefghij",
        "SHORT_TOKEN": "abc",
        "HOME": "/home/someone",
        "IDENTITY_TOKEN": "/dev/null",
        "AWS_SECRET_ACCESS_KEY": "/v1DcBa98",
        "DB_PASS": "v2DcBa98",
        "QATLINE_WEBHOOK": "https://hooks.example/v3DcBa98",
    }
    text = "abc abcdefgh abcdefghij /home/someone /dev/null"
    assert scrub(text, environment) == "abc *** *** /home/someone /dev/null"
    text = "/v1DcBa98 v2DcBa98 posted to https://hooks.example/v3DcBa98"
    assert scrub(text, environment) == "*** *** posted to ***"


def test_mask_values_finds_encoded_and_escaped_forms() -> None:
    secret = 'p@s/s "w<ö\\'
    environment = {"DB_PASS": secret}
    forms = [
        secret,
        quote(secret, safe=""),
        quote(secret),
        quote_plus(secret),
        quote(secret).lower(),
        json.dumps(secret)[1:-1],
        repr(secret)[1:-1],
        html.escape(secret),
    ]
    for form in forms:
        assert mask_values(f"<{form}>", environment) == "<***>"
    encoded = {"DATABASE_URL": f"postgresql://me:{quote(secret, safe='')}@db/runs"}
    assert mask_values(f"<{secret}>", encoded) == "<***>"


def test_mask_values_leaves_names_and_words_alone() -> None:
    environment = {"PGPASSWORD": "postgres", "DB_PASS": "password"}
    text = "postgresql://db MLFLOW_TRACKING_PASSWORD: mlflow/password"
    assert mask_values(text, environment) == text
    assert mask_values("used password, postgres.", environment) == "used ***, ***."


def test_scrub_masks_short_secrets_that_are_no_words() -> None:
    environment = {
        "PGPASSWORD": "hunt3",
        "B_TOKEN": "abcdefg",
        "C_TOKEN": "1234567",
        "D_TOKEN": "ab3",
    }
    text = "hunt3, 'hunt3' hunt3. x=hunt3 ahunt3 hunt3b /hunt3/x abcdefg 1234567 ab3"
    masked = "***, '***' ***. x=*** ahunt3 hunt3b /hunt3/x abcdefg 1234567 ab3"
    assert scrub(text, environment) == masked


def test_scrub_masks_passwords_of_addresses_in_variables() -> None:
    environment = {"DATABASE_URL": "postgresql+psycopg2://me:correct-horse@db.example:5432/runs"}
    text = "login failed for me with correct-horse at db.example"
    assert scrub(text, environment) == "login failed for me with *** at db.example"


@pytest.mark.parametrize(
    "part", ["a", "://a:", "://", "a='", "?a=", "'a':'", "x.-", "-----BEGIN PRIVATE KEY-----"]
)
def test_scrub_is_linear_in_hostile_text(part: str) -> None:
    started = time.monotonic()
    scrub(part * (200_000 // len(part)), {})
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    "uri",
    [
        "http://me:planted@host",
        "http://me:plan@ted@host:80/x",
        "http://me:plan/ted@host",
        "http://me:plan ted@host",
        "http://12:34/planted@host",
        "https://planted@host",
        "postgresql+psycopg2://me:planted@db/mlflow",
        "mysql://db/mlflow?password=planted",
        "http://host/?token=planted",
        "http://host/?a=b&access_token=planted",
        "http://host/?sig=planted",
        "https://b.s3.amazonaws.com/k?X-Amz-Security-Token=planted",
        "s3://AKIA:plan/ted@bucket/key",
    ],
)
def test_check_address_refuses_credentials_without_showing_them(uri: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^tracking\.uri: expected an address without credentials"
    ) as caught:
        check_address(uri, "tracking.uri")
    assert not re.search(r"plan|\bted", str(caught.value))


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "http://host:5000/path",
        "http://[::1]:5000",
        "sqlite:////home/me@work/mlflow.db",
        "postgresql://me@db:5432/mlflow",
        "s3://bucket/run-10:00@v1/data.npz",
        "databricks://profile",
        "http://host/?page=1&token=",
    ],
)
def test_check_address_takes_what_holds_none(uri: str) -> None:
    check_address(uri, "tracking.uri")


@pytest.mark.parametrize(
    ("uri", "name", "advice"),
    [
        ("http://u:p@h", "tracking.uri", "MLFLOW_TRACKING_PASSWORD"),
        ("http://u:p@h", "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN"),
        ("http://u:p@h", "AWS_ENDPOINT_URL_S3", "AWS_SECRET_ACCESS_KEY"),
        ("s3://k:s@b/x", "data.path", "AWS_SECRET_ACCESS_KEY"),
        ("postgresql://u:p@h/m", "tracking.uri", "PGPASSWORD"),
        ("mysql://u:p@h/m", "tracking.uri", "read_default_file"),
        ("http://u:p@h", "--host", "KFP_TOKEN"),
    ],
)
def test_check_address_says_where_credentials_belong(uri: str, name: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        check_address(uri, name)


def test_check_variables_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    check_variables("AWS_ENDPOINT_URL_S3")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://me:planted@minio:9000")
    with pytest.raises(ConfigError, match=r"^AWS_ENDPOINT_URL_S3: expected an address without"):
        check_variables("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")


def test_secret_problem_takes_words_of_development_passwords(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGPASSWORD", "postgres")
    assert secret_problem("uri", "postgresql://postgres@db/mlflow") is None
    assert secret_problem("user", "postgres") is not None


def test_secret_problem_goes_by_name_form_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "planted-in-env")
    for name, value in (
        ("api_key", "x"),
        ("width", JWT),
        ("width", "planted-in-env"),
        ("width", "in/planted-in-env/text"),
        ("DB_PASS", "x"),
        ("url", "http://a:b@c"),
        ("headers", "X-API-Key: v"),
        ("arguments", "aws_secret_access_key = v"),
        ("headers", "Authorization: Bearer abcdefgh"),
    ):
        problem = secret_problem(name, value)
        assert problem is not None
        assert value not in problem.split()
    for harmless in (
        ("api_key", None),
        ("api_key", ""),
        ("api_key", 3),
        ("class_token", "learned"),
        ("path", "/a:b@c"),
        ("arguments", "class_token=learned, width=4"),
    ):
        assert secret_problem(*harmless) is None


@pytest.mark.parametrize(
    "name", ["password", "db_passwd", "X-Amz-Signature", "AWSAccessKeyId", "hf_token", "apiKey"]
)
def test_is_secret_name(name: str) -> None:
    assert is_secret_name(name)
    assert not is_secret_name(name + "_dim")


def test_scrub_masks_secret_variables_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "planted-in-env")
    assert scrub("got planted-in-env") == "got ***"


@pytest.mark.parametrize(
    ("uri", "name", "advice"),
    [
        ("http://u:p@h", "data.path", "Set an environment variable and let the code"),
        ("ftp://u:p@h", "tracking.uri", "Set an environment variable and let the code"),
        ("mariadb://u:p@h/m", "tracking.uri", "read_default_file"),
        ("http://u:p@h", "KFP_ENDPOINT", "KFP_TOKEN"),
        ("HTTPS://u:p@h", "tracking.uri", "MLFLOW_TRACKING_USERNAME"),
    ],
)
def test_check_address_advises_by_scheme_and_name(uri: str, name: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        check_address(uri, name)


@pytest.mark.timeout(60)
def test_secret_problem_takes_linear_time() -> None:
    assert secret_problem("name", "a" * 1_000_000) is None

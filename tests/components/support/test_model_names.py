import pytest

from qatline.components.support.model_names import logged_name, registered_name


@pytest.mark.parametrize(
    ("name", "registered", "logged"),
    [
        ("resnet_digits", "resnet_digits", "resnet_digits"),
        ("mobilenetv2_1.00_224", "mobilenetv2_1.00_224", "mobilenetv2_1_00_224"),
        ("a/b:c d", "a_b_c_d", "a_b_c d"),
        ("..", "model", "__"),
        (".hidden", "hidden", "_hidden"),
        ("", "model", "model"),
        ("x" * 300, "x" * 200, "x" * 300),
    ],
)
def test_names_follow_the_rules_of_mlflow(name: str, registered: str, logged: str) -> None:
    assert registered_name(name) == registered
    assert logged_name(name) == logged

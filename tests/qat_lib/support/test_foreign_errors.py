"""Texts of other libraries in messages of ours."""

from qat_lib.support.foreign_errors import describe_error


def test_describe_drops_colours_and_the_configuration() -> None:
    error = TypeError(
        "<class 'X'> could not be ... config={'a': 1}.\n\nException encountered: \x1b[1mBad\x1b[0m\n value."
    )
    assert describe_error(error) == "Bad value"
    assert describe_error(KeyError()) == "KeyError"
    traced = RuntimeError(
        "Cannot view it!\n\nWhile executing %view : [num_users=1]\nOriginal traceback:"
    )
    assert describe_error(traced) == "Cannot view it!"
    assert len(describe_error(ValueError("x" * 9_999))) < 2_010

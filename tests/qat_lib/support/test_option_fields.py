"""Fields that say all about an option."""

from __future__ import annotations

from dataclasses import dataclass, field

from qat_lib.support.option_fields import OptionField, OptionInfo, about, fields_of


@dataclass(frozen=True, kw_only=True)
class Options:
    size: int = field(default=3, metadata=about("How large.", least=1, most=9))
    name: str | None = field(default=None, metadata=about("Whose.", in_command=False))


def test_fields_of_gives_name_type_default_and_description() -> None:
    assert fields_of(Options) == [
        OptionField(
            name="size", kind=int, default=3, info=OptionInfo(help="How large.", least=1, most=9)
        ),
        OptionField(
            name="name",
            kind=str | None,
            default=None,
            info=OptionInfo(help="Whose.", in_command=False),
        ),
    ]


def test_about_says_by_default_that_all_have_the_option() -> None:
    (info,) = about("It.").values()
    assert info.in_config
    assert info.in_command
    assert (info.least, info.most, info.above, info.below) == (None, None, None, None)
    assert (info.flag, info.command_help, info.command_least) == ("", "", None)

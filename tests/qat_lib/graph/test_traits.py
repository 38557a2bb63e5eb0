"""What the planner knows of an operation."""

from types import SimpleNamespace

from hand_made_graphs import addition, convolution, quantizer, relu, traits

from qat_lib.graph.traits import ExistingQuantizers, Traits


def test_traits_read_roles() -> None:
    assert convolution().is_weighted
    assert traits("Attend", "attention").is_weighted
    assert traits("Drop", "identity").is_identity
    assert relu().preserves_range
    for known in (addition(), traits("Unknown")):
        assert (known.is_weighted, known.is_identity) == (False, False)
        assert not known.preserves_range


def test_traits_tell_quantizers_from_wrapped_layers() -> None:
    plain = convolution()
    assert (plain.is_quantizer, plain.is_wrapped, plain.quantized_inputs) == (False, False, ())
    itself = quantizer(SimpleNamespace())
    assert (itself.is_quantizer, itself.is_wrapped, itself.quantized_inputs) == (True, False, (0,))
    wrapped = traits("Wrapped", existing=ExistingQuantizers(inputs=(0, 2)))
    assert (wrapped.is_quantizer, wrapped.is_wrapped) == (False, True)
    assert wrapped.quantized_inputs == (0, 2)


def test_traits_weights() -> None:
    assert convolution().weights() == {"kernel": (-1,)}
    assert addition().weights() == {}
    assert Traits(class_name="Unknown").weights() == {}

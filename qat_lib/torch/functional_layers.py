"""Give each weight a plain module, since quantization wraps modules."""

from __future__ import annotations

import operator
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from qat_lib.torch.functions import arguments, function_name
from qat_lib.torch.inference import in_inference

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_MODULES: dict[str, Any] = {
    "linear": nn.Linear,
    "conv1d": nn.Conv1d,
    "conv2d": nn.Conv2d,
    "conv3d": nn.Conv3d,
    "conv_transpose1d": nn.ConvTranspose1d,
    "conv_transpose2d": nn.ConvTranspose2d,
    "conv_transpose3d": nn.ConvTranspose3d,
}
_NORMS = (WeightNorm, SpectralNorm)
_PRODUCTS = ("addmm", "matmul")
"""Functions that take the weight of a linear layer transposed."""


def functions_to_modules(traced: fx.GraphModule) -> bool:
    """Replace convolutions and matrix products with a parameter by the module of the same name.

    ``F.linear(x, self.head.weight, self.head.bias)`` becomes the module ``head``, with the same
    parameters under the same names. A weight with another name, such as ``self.kernel``, becomes
    ``self.kernel.weight``; so does that of ``x @ self.kernel``, transposed. A computed bias of a
    linear layer is added behind the module. A weight that is computed from parameters alone, such as
    a standardized one, becomes the parameter ``weight_computed``. Functions of other computed or
    shared weights are kept.

    Args:
        traced: the traced module, changed in place.

    Returns:
        Whether a weight was transposed or a bias separated: sums may then have another order.
    """
    graph, is_reordered = traced.graph, False
    _split_parameters(traced)
    _computed_to_parameters(traced)
    reads = Counter(str(n.target) for n in graph.nodes if n.op == "get_attr" for _ in n.users)

    def is_own(node: Any) -> bool:
        """Return whether a node reads a parameter of this traced module, alone."""
        if not isinstance(node, fx.Node) or node.op != "get_attr" or reads[str(node.target)] != 1:
            return False
        return _is_parameter(traced, node)

    for node in list(graph.nodes):
        if node.op not in ("call_function", "call_method"):
            continue
        name = function_name(node)
        kind = nn.Linear if name in _PRODUCTS else _MODULES.get(name)
        options = dict(arguments(node))
        if kind is None or not {"input", "weight"} <= set(options):
            continue
        x, weight, bias = options.pop("input"), options.pop("weight"), options.pop("bias", None)
        added = None
        # Such as that of the attention of BEiT, which has no bias for its keys.
        if kind is nn.Linear and isinstance(bias, fx.Node) and not is_own(bias):
            added, bias = bias, None
        parameters = [weight] if bias is None else [weight, bias]
        read = {x, *parameters, added}
        # Options of a module are constants, those of a function may be computed.
        if not set(node.all_input_nodes) <= read or not all(map(is_own, parameters)):
            continue
        values = [_value(traced, each) for each in parameters]
        if values[0].dim() < 2:
            continue  # F.linear also takes a vector.
        path = _path(traced, parameters)
        if name in _PRODUCTS:
            if values[0].dim() > 2 or options or any(each.dim() > 1 for each in values[1:]):
                continue
            # Under another name, since a state may not be loaded into the transposed weight.
            path, is_reordered = str(weight.target), True
            turned = values[0].detach().t().clone(memory_format=torch.contiguous_format)
            values[0] = nn.Parameter(turned, values[0].requires_grad)
        module = _module(kind, values, options)
        for each in parameters:
            delattr(*_place(traced, each))
        traced.add_submodule(path, module.train(traced.training))
        with graph.inserting_before(node):
            result = graph.call_module(path, (x,))
            if added is not None:
                result, is_reordered = graph.call_function(operator.add, (result, added)), True
            node.replace_all_uses_with(result)
        for unread in (node, *parameters):
            graph.erase_node(unread)
    return is_reordered


def normed_to_plain(traced: fx.GraphModule) -> None:
    """Replace layers with a weight or spectral norm by layers with the weight that it computes.

    Args:
        traced: the traced module, changed in place. The layers themselves are not changed.
    """
    for path in {str(node.target) for node in traced.graph.find_nodes(op="call_module")}:
        layer = traced.get_submodule(path)
        kind = next((each for each in _MODULES.values() if isinstance(layer, each)), None)
        computed = _computed_parameters(layer)
        if kind is None or not computed or type(layer).forward is not kind.forward:
            continue
        if not _is_container(traced, traced.get_submodule(path.rpartition(".")[0])):
            continue
        plain = kind.__new__(kind)  # a layer with a parametrization refuses to be copied
        plain.__dict__ = {
            name: value for name, value in vars(layer).items() if name not in computed
        }
        parameters = {**layer._parameters, **computed}
        plain._parameters = {name: parameters[name] for name in ("weight", "bias")}
        plain._buffers, plain._modules = {}, {}
        hooks = layer._forward_pre_hooks.items()
        plain._forward_pre_hooks = OrderedDict(x for x in hooks if not isinstance(x[1], _NORMS))
        traced.set_submodule(path, plain)


def _computed_parameters(layer: nn.Module) -> dict[str, nn.Parameter]:
    """Return the values of parameters that a layer computes before each call, by name."""
    found = {}
    with torch.no_grad(), in_inference(layer):
        if parametrize.is_parametrized(layer):
            found = {name: getattr(layer, name) for name in layer.parametrizations}
        for hook in layer._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm):
                found[hook.name] = hook.compute_weight(layer)
            elif isinstance(hook, SpectralNorm):
                found[hook.name] = hook.compute_weight(layer, do_power_iteration=False)
    return {name: nn.Parameter(value.detach().clone()) for name, value in found.items()}


def _split_parameters(traced: fx.GraphModule) -> None:
    """Replace ``self.weight.chunk(3)[0]`` by the parameter ``weight_0``, and the others likewise."""
    graph = traced.graph
    for node in graph.find_nodes(op="call_method", target="chunk"):
        source, count, *axis = node.args
        parts = list(node.users)
        reads_one = isinstance(source, fx.Node) and source.op == "get_attr" and not axis
        are_parts = all(part.target is operator.getitem for part in parts)
        if not (reads_one and are_parts and set(source.users) == {node}):
            continue
        if not _is_parameter(traced, source):
            continue
        holder, name = _place(traced, source)
        values = getattr(holder, name)
        for index, value in enumerate(values.detach().chunk(count)):
            part_name = f"{name}_{index}"
            setattr(holder, part_name, nn.Parameter(value.clone(), values.requires_grad))
            with graph.inserting_before(node):
                read = graph.get_attr(f"{str(source.target).removesuffix(name)}{part_name}")
            for part in parts:
                if part.args[1] == index:
                    part.replace_all_uses_with(read)
        delattr(holder, name)
        for unread in (*parts, node, source):
            graph.erase_node(unread)


def _computed_to_parameters(traced: fx.GraphModule) -> None:
    """Replace weights that are computed from parameters alone by parameters with their values.

    Parameters with other readers remain: a copy would no longer be trained with them.
    """
    graph = traced.graph

    def is_norm(node: fx.Node) -> bool:
        """Return whether a node is a parametrization that torch.fx can't trace."""
        kind = type(traced.get_submodule(str(node.target))) if node.op == "call_module" else object
        return kind.__module__.startswith("torch.nn.utils")

    fixed: dict[fx.Node, None] = {}
    for node in graph.nodes:
        inputs = node.all_input_nodes
        is_computed = inputs and (node.op in ("call_function", "call_method") or is_norm(node))
        if node.op == "get_attr" or (is_computed and all(each in fixed for each in inputs)):
            fixed[node] = None
    for node in list(graph.nodes):
        is_layer = node.op == "call_function" and function_name(node) in _MODULES
        weight = arguments(node).get("weight") if is_layer else None
        if not isinstance(weight, fx.Node) or weight not in fixed or weight.op == "get_attr":
            continue
        needed = _needed_for(weight)
        steps = [each for each in fixed if each in needed]
        reads = [each for each in steps if each.op == "get_attr"]
        targets = {each.target for each in reads}
        others = [each for each in graph.find_nodes(op="get_attr") if each not in reads]
        is_alone = all(user is node or user in needed for each in steps for user in each.users)
        if not is_alone or any(each.target in targets for each in others):
            continue
        sources = [each for each in reads if isinstance(_value(traced, each), nn.Parameter)]
        if not sources or not all(_is_parameter(traced, each) for each in sources):
            continue
        interpreter = fx.Interpreter(traced)
        with torch.no_grad(), in_inference(traced):
            for step in steps:
                found = interpreter.run_node(step)
                # A copy, which a step may change in place.
                interpreter.env[step] = found.clone() if step in reads else found
        holder, name = _place(traced, sources[0])
        is_trained = _value(traced, sources[0]).requires_grad
        value = nn.Parameter(interpreter.env[weight].clone(), is_trained)
        setattr(holder, f"{name}_computed", value)
        with graph.inserting_before(node):
            node.replace_input_with(weight, graph.get_attr(f"{sources[0].target}_computed"))
        for step in reversed(steps):
            graph.erase_node(step)
        for place in {_place(traced, each) for each in sources}:
            delattr(*place)


def _needed_for(node: fx.Node) -> set[fx.Node]:
    """Return a node, and all nodes that it is computed from."""
    found, waiting = {node}, [node]
    while waiting:
        new = set(waiting.pop().all_input_nodes) - found
        found |= new
        waiting += new
    return found


def _is_parameter(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Return whether a node reads a parameter of this traced module."""
    holder, _ = _place(traced, node)
    return _is_container(traced, holder) and isinstance(_value(traced, node), nn.Parameter)


def _is_container(traced: fx.GraphModule, holder: nn.Module) -> bool:
    """Return whether a module is a container made by torch.fx, and not one of the user's."""
    return holder is traced or type(holder) is nn.Module


def _place(traced: fx.GraphModule, node: fx.Node) -> tuple[nn.Module, str]:
    """Return the container of a parameter, and its name there."""
    path, _, name = str(node.target).rpartition(".")
    return traced.get_submodule(path), name


def _value(traced: fx.GraphModule, node: fx.Node) -> Any:
    """Return the parameter or constant that a node reads."""
    return getattr(*_place(traced, node))


def _path(traced: fx.GraphModule, parameters: Sequence[fx.Node]) -> str:
    """Return the path of a new module: the container of its parameters, if it has no others."""
    target = str(parameters[0].target)
    path = target.rpartition(".")[0]
    holder = traced.get_submodule(path)
    names = dict(zip(("weight", "bias"), parameters, strict=False))
    is_whole = set(holder.state_dict()) == set(names) and next(holder.children(), None) is None
    is_there = all(str(each.target) == f"{path}.{name}" for name, each in names.items())
    return path if path and is_whole and is_there else target


def _module(kind: Any, parameters: Sequence[nn.Parameter], options: dict[str, Any]) -> nn.Module:
    """Return a module with these parameters, of a linear layer or a convolution."""
    (first, second, *kernel), groups = parameters[0].shape, options.get("groups", 1)
    sizes: list[Any] = [second, first]
    if kernel:
        is_transposed = issubclass(kind, _TRANSPOSED)
        sizes = [first, second * groups] if is_transposed else [second * groups, first]
        sizes.append(tuple(kernel))
    # Without memory: the parameters are replaced.
    module: nn.Module = kind(*sizes, bias=len(parameters) > 1, device="meta", **options)
    for name, parameter in zip(("weight", "bias"), parameters, strict=False):
        setattr(module, name, parameter)
    return module

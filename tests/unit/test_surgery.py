"""Channel surgery on hand-made networks: groups, fixed channels, and refused edits."""

from __future__ import annotations

import pytest
import torch
from surgery_factory import IMAGE, Net, conv
from torch import nn
from torch.nn import functional as F

from driftlab.errors import RequestError
from driftlab.platform.networks import vector
from driftlab.platform.networks.pruning.surgery import coordinates, cut, expand, groups, lift, mask, permute, restrict


def plain() -> Net:
    layers = {"a": conv(3, 6), "norm": nn.BatchNorm2d(6), "b": conv(6, 8), "full": nn.Linear(8 * 4, 5)}

    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        x = F.adaptive_avg_pool2d(net.b(net.norm(net.a(x)).relu()).relu(), 2)
        return net.full(torch.flatten(x, 1))

    return Net(forward, **layers)


def test_a_chain_has_a_group_per_layer_and_an_output_that_stays():
    found = groups(plain(), IMAGE)
    assert found.sizes == {"a": 6, "b": 8}
    assert found.fixed == {"full": "they are outputs of the model"}
    small = cut(plain(), found, {"a": [5, 0], "b": range(3)})
    assert [(m.in_channels, m.out_channels) for m in (small.a, small.b)] == [(3, 2), (2, 3)]
    assert (small.norm.num_features, small.full.in_features) == (2, 12)
    assert torch.equal(small.a.weight, plain().a.weight[[0, 5]])
    assert torch.equal(small.full.weight, plain().full.weight[:, :12])


def test_after_a_permutation_a_smaller_model_is_a_prefix():
    model = plain()
    found = groups(model, IMAGE)
    ordered = permute(model, found, {"a": [3, 1, 5, 0, 2, 4], "b": [7, 6, 5, 4, 3, 2, 1, 0]})
    small = cut(ordered, found, {"a": range(4), "b": range(2)})
    for name, tensor in small.state_dict().items():
        whole = ordered.state_dict()[name]
        assert torch.equal(tensor, whole[tuple(slice(size) for size in tensor.shape)])
    assert torch.equal(ordered.a.weight[0], model.a.weight[3])
    assert torch.allclose(ordered(IMAGE), model(IMAGE), rtol=1e-5)


def test_edits_change_no_tensor_of_the_original():
    model = plain().train()
    model.a.weight.requires_grad_(False)
    model.norm.weight.grad = torch.ones(6)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = groups(model, IMAGE)
    keep = {"a": [0, 1]}
    made = [cut(model, found, keep), mask(model, found, keep), permute(model, found, {"a": range(6)})]
    made.append(expand(made[0], model, found, keep))
    for other in made:
        assert other.training and not other.a.weight.requires_grad and other.b.weight.requires_grad
        for tensor in (*other.parameters(), *other.buffers()):
            tensor.data.fill_(7)
            assert tensor.grad is None
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_depthwise_layer_is_pruned_with_its_producer_and_a_block_whole_or_evenly():
    layers = {"a": conv(3, 6), "deep": conv(6, 6, groups=6), "b": conv(6, 8), "wide": conv(8, 12, groups=4)}
    net = Net(lambda net, x: net.head(net.wide(net.b(net.deep(net.a(x))))), **layers, head=conv(12, 2))
    found = groups(net, IMAGE)
    assert found.sizes == {"a": 6, "b": 4, "b#2": 2, "wide": 3}  # blocks, then places in each: inputs and outputs
    small = cut(net, found, {"a": [0, 2], "b": [1, 2, 3]})
    assert (small.deep.groups, small.deep.in_channels, small.deep.out_channels) == (2, 2, 2)
    assert (small.wide.groups, small.wide.in_channels, small.wide.out_channels) == (3, 6, 9)
    assert torch.equal(small.b.weight, net.b.weight[2:, [0, 2]])
    assert cut(net, found, {"a": [1]}).deep.groups == 1
    small = cut(net, found, keep := {"b": [1, 3], "b#2": [1], "wide": [0, 2]})
    assert (small.wide.groups, small.wide.in_channels, small.wide.out_channels) == (2, 2, 4)
    assert torch.equal(small.wide.weight, net.wide.weight[[3, 5, 9, 11]][:, [1]])
    assert torch.equal(small.head.weight, net.head.weight[:, [3, 5, 9, 11]])
    assert torch.allclose(small(IMAGE), mask(net, found, keep)(IMAGE), rtol=1e-4)


def test_transposed_convolutions_have_swapped_dimensions():
    up, wide = nn.ConvTranspose2d(6, 4, 2, 2), nn.ConvTranspose2d(4, 6, 2, 2, groups=2)
    net = Net(lambda net, x: net.head(net.wide(net.up(net.a(x)))), a=conv(3, 6), up=up, wide=wide, head=conv(6, 2))
    found = groups(net, IMAGE)
    assert found.sizes == {"a": 6, "up": 2}
    small = cut(net, found, {"a": [1, 2], "up": [1]})
    assert small.up.weight.shape == (2, 2, 2, 2)
    assert (small.wide.groups, small.wide.in_channels, small.wide.out_channels) == (1, 2, 3)
    assert torch.allclose(small(IMAGE), mask(net, found, {"a": [1, 2], "up": [1]})(IMAGE), rtol=1e-4)


def test_joined_channels_keep_their_own_groups_even_where_a_sum_meets_both():
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        return net.head(torch.cat([net.b(x), net.a(x)], dim=1) + net.both(x))

    net = Net(forward, a=conv(3, 4), b=conv(3, 6), both=conv(3, 10), head=conv(10, 2))
    found = groups(net, IMAGE)
    assert found.sizes == {"b": 6, "a": 4}
    assert found.members["a"].layers == ("a", "both")
    small = cut(net, found, {"a": [0], "b": [5]})
    assert torch.equal(small.both.weight, net.both.weight[[5, 6]])
    assert torch.equal(small.head.weight, net.head.weight[:, [5, 6]])


@pytest.mark.parametrize("join", [lambda a, b: torch.cat([a, b], 3), lambda a, b: torch.stack([a, b], 4).flatten(3)])
def test_images_side_by_side_have_the_same_channels(join):
    net = Net(lambda net, x: net.head(join(net.a(x), net.b(x))), a=conv(3, 4), b=conv(3, 4), head=conv(4, 2))
    found = groups(net, IMAGE)
    assert found.members["a"].layers == ("a", "b")


def test_two_groups_that_begin_in_one_layer_have_separate_names():
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        return net.head(net.both(x) + torch.cat([net.a(x), net.b(x)], dim=1))

    net = Net(forward, a=conv(3, 4), b=conv(3, 6), both=conv(3, 10), head=conv(10, 2))
    assert groups(net, IMAGE).sizes == {"both": 4, "both#2": 6}


def test_attention_over_channels_is_refused_with_its_place():
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        x = net.b(net.a(x).relu())
        seen = torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True).values], dim=1)
        return net.head(x * net.where(seen).sigmoid())

    net = Net(forward, a=conv(3, 6), b=conv(6, 4), where=conv(2, 1), head=conv(4, 2))
    found = groups(net, IMAGE)
    assert found.sizes == {"a": 6, "where": 1}
    with pytest.raises(RequestError, match="layer 'b' must stay: the model's own forward takes the mean over channels"):
        cut(net, found, {"b": [0, 1]})


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (lambda x: F.group_norm(x, 2), "calls group_norm"),
        (lambda x: x.softmax(1), "takes the softmax over channels"),
        (lambda x: torch.cat(x.chunk(2, dim=1)[::-1], dim=1), r"divides its channels by position \(chunk\)"),
        (lambda x: x.view(2 if len(x) > 1 else 1, 2, 3, 8, 8).transpose(1, 2).flatten(1, 2), r"by position \(view\)"),
        (lambda x: x[:, [1, 0, 2, 3, 4, 5]], r"by position \(getitem\)"),
        (lambda x: x + torch.ones(1, 6, 1, 1), "a tensor that it computes"),
        (lambda x: F.conv2d(x, torch.ones(6, 6, 1, 1)), "a tensor that it computes"),
        (lambda x: torch.cat([x, torch.ones(len(x), 1, 8, 8)], 1)[:, :6], "joins them to a constant"),
        (lambda x: x.reshape(-1, 6, 4, 16).reshape(-1, 6, 8, 8), "depends on their number"),
    ],
)
def test_channels_whose_number_affects_the_output_stay(forward, reason: str):
    net = Net(lambda net, x: net.c(net.b(forward(net.a(x)))), a=conv(3, 6), b=conv(6, 4), c=conv(4, 2))
    found = groups(net, IMAGE)
    assert found.sizes == {"b": 4}
    with pytest.raises(RequestError, match=f"channels of layer 'a' must stay: .*{reason}"):
        permute(net, found, {"a": range(6)})


def test_writing_into_a_part_of_the_channels_is_seen():
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        x = net.a(x).clone()
        x[:, :2] = 0
        return net.b(x)

    assert "calls setitem" in groups(Net(forward, a=conv(3, 6), b=conv(6, 4)), IMAGE).fixed["a"]


def test_a_weight_that_also_serves_an_unknown_function_stays():
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        return net.c(F.group_norm(net.b(net.norm(net.a(x))), 2, net.norm.weight))

    net = Net(forward, a=conv(3, 6), norm=nn.BatchNorm2d(6), b=conv(6, 6), c=conv(6, 2))
    assert "calls group_norm" in groups(net, IMAGE).fixed["a"]


def test_numbers_per_channel_and_constants_without_channels_are_no_obstacle():
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        x = net.bend(net.a(x)) * net.scale + torch.arange(8.0)
        return net.b(torch.cat([F.pad(1 - x, (1, 1)).mean(3, keepdim=True), torch.ones(len(x), 1, 8, 1)], dim=1))

    net = Net(forward, a=conv(3, 6), bend=nn.PReLU(6), b=conv(7, 2))
    net.scale = nn.Parameter(torch.rand(6, 1, 1))
    found = groups(net, IMAGE)
    small = cut(net, found, {"a": [0, 5]})
    assert small.scale.shape == (2, 1, 1) and small.bend.num_parameters == 2 and small.b.in_channels == 3
    assert torch.allclose(small(IMAGE), mask(net, found, {"a": [0, 5]})(IMAGE), rtol=1e-4)


def test_a_layer_used_twice_and_weights_that_are_shared_stay_one():
    net = Net(lambda net, x: net.head(net.twin(net.again(net.again(net.a(x))))), a=conv(3, 6), again=conv(6, 6))
    net.twin, net.head = conv(6, 6), conv(6, 2)
    net.twin.weight = nn.Parameter(net.again.weight.data)  # another parameter, the same storage
    found = groups(net.eval(), IMAGE)
    assert found.sizes == {"a": 6}
    small = cut(net, found, {"a": [0, 4]})
    assert small.twin.weight.data_ptr() == small.again.weight.data_ptr()
    assert vector.layout_of(small).names == vector.layout_of(net).names


def test_flat_vectors_are_cut_by_coordinates():
    model = plain()
    found, keep = groups(model, IMAGE), {"a": [4, 1], "b": [0, 2, 3]}
    where = coordinates(vector.layout_of(model), found, keep)
    assert vector.read(model)[where].tolist() == vector.read(cut(model, found, keep)).tolist()


def test_all_faults_of_a_request_are_reported_at_once():
    model = plain()
    found = groups(model, IMAGE)
    wrong = {"a": [], "b": [0, 8], "full": [0], "norn": [1]}
    with pytest.raises(RequestError) as caught:
        cut(model, found, wrong)
    for part in (
        "'a' is left with none of its 6 channels",
        "'b' has channels 0 to 7, got 8",
        "layer 'full' must stay: they are outputs of the model",
        "there is no group 'norn'",
    ):
        assert part in str(caught.value)
    for keep, part in (
        ({"a": [0, 0]}, "'a' names a channel twice"),
        ({"a": [-1]}, "got -1"),
        ({"a": torch.ones(6, dtype=torch.bool)}, "list of indices, got torch.bool"),
        ({"aa": [0]}, "did you mean 'a'"),
    ):
        with pytest.raises(RequestError, match=part):
            cut(model, found, keep)
    with pytest.raises(RequestError, match="an order names all of them, got 5"):
        permute(model, found, {"a": range(5)})


def test_a_member_of_a_group_is_led_to_its_group():
    net = Net(lambda net, x: net.head(net.a(x) + net.b(x)), a=conv(3, 6), b=conv(3, 6), head=conv(6, 2))
    with pytest.raises(RequestError, match="layer 'b' belong to the group 'a'"):
        cut(net, groups(net, IMAGE), {"b": [0]})


def test_groups_of_another_network_are_refused():
    other = Net(lambda net, x: net.b(net.a(x)), a=conv(3, 5), b=conv(5, 2))
    found = groups(other, IMAGE)
    with pytest.raises(RequestError, match=r"'a.weight' has shape \(6, 3, 3, 3\).* 5 along dimension 0"):
        cut(plain(), found, {})
    with pytest.raises(RequestError, match=r"another network: this one has no 'a.bias'"):
        cut(nn.Sequential(plain()), found, {})
    with pytest.raises(RequestError, match=r"'a.weight' has shape \(5, 3, 3, 3\).* 2 along dimension 0"):
        lift(restrict(other.state_dict(), found, {}), found, {"a": [0, 1]})


def test_a_model_that_does_not_run_is_refused_with_the_layer():
    with pytest.raises(RequestError, match=r"does not run on an example of shape \(2, 4, 8, 8\): layer 'a' says"):
        groups(plain(), torch.ones(2, 4, 8, 8))


def test_channels_that_leave_torch_are_refused_with_the_layer():
    class Outside(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(x.numpy() + 1)

    net = Net(lambda net, x: net.b(net.outside(net.a(x))), a=conv(3, 6), outside=Outside(), b=conv(6, 2))
    with pytest.raises(RequestError, match=r"layer 'outside' \(Outside\) cannot be followed"):
        groups(net, IMAGE)


@pytest.mark.parametrize(("then", "reason"), [("raise", "six, please"), ("more", "as it does with all"), ("other", "")])
def test_code_that_reads_the_number_of_channels_fixes_them(then: str, reason: str):
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        image, x = x, net.a(x)
        if x.shape[1] != 6 and then == "raise":
            raise ValueError("six, please")
        if x.shape[1] != 6 and then == "more":
            return net.b(x) + net.c(image)
        return net.b(x.softmax(1) if x.shape[1] != 6 else x)

    net = Net(forward, a=conv(3, 6), b=conv(6, 2), c=conv(3, 2))
    if reason:
        with pytest.raises(RequestError, match=f"does not run with fewer channels .*{reason}"):
            groups(net, IMAGE)
    else:
        assert groups(net, IMAGE).fixed["a"] == "layer 'b' depends on their number"


def test_layers_after_a_number_in_the_code_can_be_pruned():
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        return net.last(net.full(net.b(net.a(x)).view(-1, 4 * 8 * 8)).relu())

    layers = {"a": conv(3, 6), "b": conv(6, 4), "full": nn.Linear(256, 8), "last": nn.Linear(8, 2)}
    found = groups(Net(forward, **layers), IMAGE)
    assert found.sizes == {"a": 6, "full": 8}
    assert found.fixed["b"] == "the model's own forward depends on their number"

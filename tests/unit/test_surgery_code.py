"""Channel surgery on code between layers: numbers of channels, views, products, branches and training."""

from __future__ import annotations

import random

import pytest
import torch
from surgery_factory import IMAGE, Net, conv
from torch import nn
from torch.nn import functional as F

from driftlab.errors import RequestError
from driftlab.platform.networks.pruning import surgery
from driftlab.platform.networks.pruning.surgery import Groups, cut, groups, mask, permute
from driftlab.platform.networks.pruning.surgery.rules import keep as keeps_channels


def check(net: nn.Module, found: Groups, image: torch.Tensor = IMAGE) -> None:
    """Check that the cut network equals the masked one, and the permuted network the original."""
    keep = {name: [k for k in range(size) if k % 2 == 0] for name, size in found.sizes.items()}
    order = {name: range(size - 1, -1, -1) for name, size in found.sizes.items()}
    with torch.no_grad():
        torch.testing.assert_close(cut(net, found, keep)(image), mask(net, found, keep)(image), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(permute(net, found, order)(image), net(image), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x / x.shape[1],
        lambda x: x * x.size(1) ** -0.5,
        lambda x: x + 1 / x.shape[1],
        lambda x: x.sum(dim=(2, 3), keepdim=True) * x[0].numel(),
    ],
)
@pytest.mark.parametrize("image", [IMAGE, torch.zeros_like(IMAGE)])
def test_a_number_of_channels_that_code_computes_with_fixes_them(use, image):
    net = Net(lambda net, x: net.c(use(net.b(net.a(x)))), a=conv(3, 6), b=conv(6, 4), c=conv(4, 2))
    found = groups(net, image)
    assert found.sizes == {"a": 6}
    assert found.fixed["b"] == "with fewer of them the output of the model changes"
    check(net, found)


def test_a_number_of_channels_is_detected_after_a_scale_of_zero():
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        y = net.b(net.a(x))
        return net.head(net.stem(x) + net.norm(net.c(y / y.shape[1])))

    layers = {"stem": conv(3, 6), "a": conv(3, 6), "b": conv(6, 6), "c": conv(6, 6), "norm": nn.BatchNorm2d(6)}
    net = Net(forward, **layers, head=conv(6, 2))
    net.norm.weight.data.zero_()  # a usual initialisation of residual networks
    assert groups(net, IMAGE).sizes == {"stem": 6, "a": 6}


def test_two_channels_that_are_counted_stay_two():
    net = Net(lambda net, x: net.b(net.a(x) / net.a(x).shape[1]), a=conv(3, 2), b=conv(2, 2))
    assert groups(net, IMAGE).sizes == {}


def test_a_network_with_casts_is_compared_in_its_number_format():
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        return net.b(net.a(x.float()).relu().float())

    net = Net(forward, a=conv(3, 6), b=conv(6, 2))
    found = groups(net, IMAGE)
    assert found.sizes == {"a": 6}
    check(net, found)


def scaled(use) -> Net:
    net = Net(lambda net, x: net.b(use(net, net.a(x))), a=conv(3, 6), b=conv(6, 2))
    net.scale = nn.Parameter(torch.rand(6))
    net.table = nn.Parameter(torch.rand(2, 6))
    net.register_buffer("mean", torch.rand(6, 1, 1))
    return net


@pytest.mark.parametrize(
    "use",
    [
        lambda net, x: x - net.mean.to(x),
        lambda net, x: x - net.mean.type_as(x),
        lambda net, x: x * net.scale.view(1, -1, 1, 1),
        lambda net, x: x * net.scale[None, :, None, None],
        lambda net, x: x * net.scale.unsqueeze(-1).unsqueeze(-1).expand_as(x),
        lambda net, x: x * F.softplus(net.scale).reshape(-1, 1, 1),
        lambda net, x: x * net.scale.exp().view(-1, 1, 1).float(),
        lambda net, x: x * net.table[1].view(-1, 1, 1) + net.table[0].view(-1, 1, 1),
        lambda net, x: (x.permute(0, 2, 3, 1) * net.scale.detach()).permute(0, 3, 1, 2),
        lambda net, x: F.batch_norm(x, net.mean.view(-1), net.scale.abs().to(x.dtype)),
        lambda net, x: F.relu(input=x),
        lambda net, x: F.dropout(input=x, training=False) + x.new_zeros(1),
        lambda net, x: x * x.mean(dim=(2, 3), keepdim=True) + net.scale.mean(),
    ],
)
def test_views_of_the_models_own_tensors_go_with_their_channels(use):
    net = scaled(use)
    found = groups(net, IMAGE)
    assert found.sizes == {"a": 6}
    check(net, found)


def test_a_partial_view_of_a_tensor_fixes_the_channels_that_meet_it():
    net = scaled(lambda net, x: x * torch.cat([net.scale[3:], net.scale[:3]]).view(-1, 1, 1))
    assert groups(net, IMAGE).sizes == {}


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x * x.mean(),
        lambda x: x / x.std(False),
        lambda x: x / torch.stack([x.mean(), x.amax()]).sum(),
    ],
)
def test_a_number_computed_from_all_channels_fixes_only_them(use):
    net = Net(lambda net, x: net.c(net.b(use(net.a(x)))), a=conv(3, 6), b=conv(6, 4), c=conv(4, 2))
    found = groups(net, IMAGE)
    assert found.sizes == {"b": 4} and "over channels" in found.fixed["a"]
    check(net, found)
    image = Net(lambda net, x: net.b(net.a(x - x.mean() + x.std(False)).relu()), a=conv(3, 6), b=conv(6, 2))
    found = groups(image, IMAGE)
    assert found.sizes == {"a": 6}
    check(image, found)


class LoRA(nn.Module):
    """A frozen layer and a parallel low-rank one."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.full = nn.Linear(inputs, outputs)
        self.down, self.up = nn.Parameter(torch.randn(inputs, rank)), nn.Parameter(torch.randn(rank, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.full(x) + (x @ self.down) @ self.up * 0.5


def lora() -> Net:
    layers = {"a": nn.Linear(8, 6), "norm": nn.LayerNorm(8), "low": LoRA(6, 10, 4), "last": nn.Linear(10, 3)}
    return Net(lambda net, x: net.last(net.low(net.a(net.norm(x)).relu()).relu()), **layers)


def test_low_rank_adapters_written_as_matrix_products_are_cut():
    net = lora()
    found = groups(net, IMAGE)
    assert found.sizes == {"a": 6, "low.full": 10, "low": 4}
    assert found.members["low.full"].layers == ("low.full", "low")
    check(net, found)
    small = cut(net, found, {"a": [0, 1], "low": [3], "low.full": [5, 6, 7]})
    assert (small.low.down.shape, small.low.up.shape) == ((2, 1), (1, 3))
    assert torch.equal(small.low.down, net.low.down[:2, 3:])


@pytest.mark.parametrize(
    ("product", "sizes"),
    [
        (lambda net, x: x @ net.weight, {"a": 6, "": 4}),
        (lambda net, x: x @ net.other.T, {"a": 6, "": 4}),
        (lambda net, x: torch.einsum("nhwc,cd->nhwd", x, net.weight), {"a": 6, "": 4}),
        (lambda net, x: torch.einsum("nhwc, dc", x, net.other).permute(1, 2, 3, 0), {"a": 6, "": 4}),
        (lambda net, x: (net.other @ x.transpose(-1, -2)).transpose(-1, -2), {"a": 6, "": 4}),
        (lambda net, x: net.other.matmul(x.mT).mT, {"a": 6, "": 4}),
        (lambda net, x: torch.einsum("nhwc,c->nhwc", x, net.scale) @ net.weight, {"a": 6, "": 4}),
        (lambda net, x: net.places @ x @ net.weight, {"a": 6, "": 4}),
        (lambda net, x: F.layer_norm(x.transpose(1, 3), (8,)).transpose(1, 3) @ net.weight, {"a": 6, "": 4}),
        (lambda net, x: F.layer_norm(x, (6,)) @ net.weight, {"": 4}),
        (lambda net, x: (x @ x.transpose(-1, -2)) @ x @ net.weight, {"": 4}),
        (lambda net, x: torch.einsum("nhwc,nhvc->nhwv", x, x) @ x @ net.weight, {"": 4}),
    ],
)
def test_products_read_and_make_channels_or_say_that_they_sum_over_them(product, sizes):
    net = Net(lambda net, x: net.b(product(net, net.a(x).permute(0, 2, 3, 1))), a=conv(3, 6), b=nn.Linear(4, 2))
    net.weight, net.other = nn.Parameter(torch.rand(6, 4)), nn.Parameter(torch.rand(4, 6))
    net.scale, net.places = nn.Parameter(torch.rand(6)), nn.Parameter(torch.rand(8, 8))
    found = groups(net, IMAGE)
    assert {name if name == "a" else "": size for name, size in found.sizes.items()} == sizes
    check(net, found)


class Attention(nn.Module):
    """A non-local block: values have separate channels, queries and keys cannot be cut."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.query, self.key, self.value = (nn.Conv2d(6, n, 1) for n in (4, 4, 5))
        self.out = nn.Conv2d(5, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).flatten(2).transpose(1, 2) for layer in (self.query, self.key, self.value))
        seen = F.scaled_dot_product_attention(q, k, v) if self.fused else (q @ k.transpose(1, 2) / 2).softmax(-1) @ v
        return x + self.out(seen.transpose(1, 2).unflatten(2, x.shape[2:]))


@pytest.mark.parametrize("fused", [True, False])
def test_attention_fixes_queries_and_keys_and_cuts_values(fused):
    net = Net(lambda net, x: net.b(net.see(net.a(x))), a=conv(3, 6), see=Attention(fused), b=conv(6, 2))
    found = groups(net, IMAGE)
    assert found.sizes == {"a": 6, "see.value": 5}
    assert "sums over channels" in found.fixed["see.key"]
    check(net, found)


def with_head() -> Net:
    """Return a network with an auxiliary head for training, as in GoogLeNet."""

    def forward(net: Net, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        y = net.a(x).relu()
        seen = net.head(net.norm(net.b(y).mean(dim=(2, 3))))
        return (seen, net.aside(net.apart(y).mean(dim=(2, 3)))) if net.training else seen

    layers = {"a": conv(3, 6), "b": conv(6, 4), "norm": nn.BatchNorm1d(4), "head": nn.Linear(4, 2)}
    return Net(forward, **layers, apart=conv(6, 5), aside=nn.Linear(5, 2))


def test_a_cut_network_trains_with_the_head_that_only_training_uses():
    net = with_head()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    found = groups(net, IMAGE)
    assert found.sizes == {"a": 6, "b": 4, "apart": 5}
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert not net.training
    small = cut(net, found, {name: range(2) for name in found.sizes}).train()
    seen, aside = small(IMAGE)
    (seen.sum() + aside.sum()).backward()
    assert small.apart.weight.grad.shape == (2, 2, 3, 3)


def test_a_network_that_cannot_train_on_images_is_followed_in_evaluation_mode():
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        if net.training:
            raise ValueError("targets, please")
        return net.b(net.a(x))

    assert groups(Net(forward, a=conv(3, 6), b=conv(6, 2)), IMAGE).sizes == {"a": 6}


class Exits(nn.Module):
    """A network with an early exit."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.soon, self.late = conv(3, 6), conv(6, 4), nn.Linear(6, 2), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, soon: bool = False) -> torch.Tensor:
        x = self.a(x).relu()
        return self.soon(x.mean(dim=(2, 3))) if soon else self.late(self.b(x).mean(dim=(2, 3)))


def test_every_branch_that_is_named_still_runs():
    net = Exits().eval()
    keep = {"a": range(2), "b": range(2)}
    with pytest.raises(RuntimeError):
        cut(net, groups(net, IMAGE), keep)(IMAGE, soon=True)
    branches = (lambda net, x: net(x), lambda net, x: net(x, soon=True))
    small = cut(net, groups(net, IMAGE, branches=branches), keep)
    assert small(IMAGE).shape == small(IMAGE, soon=True).shape == (2, 2)


class Odd(nn.Module):
    """A function without a rule."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.erfcx(x.abs())


def test_leaves_add_a_rule_for_a_type_of_module():
    net = Net(lambda net, x: net.b(net.odd(net.a(x))), a=conv(3, 6), odd=Odd(), b=conv(6, 2))
    assert groups(net, IMAGE).sizes == {}
    seen: list[str] = []

    def rule(call: surgery.TorchCall) -> list[torch.Tensor]:
        seen.append(call.name)
        return keeps_channels(call)

    found = groups(net, IMAGE, leaves={Odd: rule})
    assert found.sizes == {"a": 6} and set(seen) == {"Odd"}
    check(net, found)


def test_a_rule_for_a_type_of_module_binds_its_tensors_and_may_refuse():
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each = nn.Parameter(torch.rand(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.erfcx(x.abs()) * self.each.view(-1, 1, 1)

    def rule(call: surgery.TorchCall) -> list[torch.Tensor]:
        call.trace.bind(call.func.each, 0, call.main.labels[0, :, 0, 0])
        return [call.main.labels]

    def refuse(call: surgery.TorchCall) -> list[torch.Tensor]:
        raise surgery.Lost("is not to be cut")

    net = Net(lambda net, x: net.b(net.scale(net.a(x))), a=conv(3, 6), scale=Scale(), b=conv(6, 2))
    found = groups(net, IMAGE, leaves={Scale: rule})
    assert found.sizes == {"a": 6}
    check(net, found)
    with pytest.raises(RequestError, match="'a' must stay: layer 'scale' is not to be cut"):
        cut(net, groups(net, IMAGE, leaves={Scale: refuse}), {"a": [0]})


def test_stochastic_depth_is_followed_in_evaluation_mode():
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        x = F.dropout(net.a(x), training=net.training)  # draws more random numbers for more channels
        for _ in range(20):
            x = net.b(x) if not net.training or (torch.rand(()) < 0.5 and random.random() < 0.5) else x
        return net.c(x)

    net = Net(forward, a=conv(3, 6), b=conv(6, 6), c=conv(6, 2))
    before = torch.get_rng_state(), random.getstate()
    assert groups(net, IMAGE).sizes == {"a": 6}
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]


def test_noise_in_outputs_is_equal_for_the_cut_and_the_masked_network():
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        return net.b(net.a(x)) + torch.randn(len(x), 2, 8, 8)

    assert groups(Net(forward, a=conv(3, 6), b=conv(6, 2)), IMAGE).sizes == {"a": 6}

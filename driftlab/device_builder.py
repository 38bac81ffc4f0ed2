"""A builder that prunes and trains families of networks on their torch device.

The plain builder does so on the CPU. It is part of the code of every recorded verdict, so it stays as it is.
"""

from __future__ import annotations

from driftlab.platform.core.limits import limited
from driftlab.platform.core.records import Reply, Weights
from driftlab.platform.networks.training import artifacts
from driftlab.platform.networks.training.artifacts import FamilyRecipe
from driftlab.platform.sim.nodes.networks import BUILD_CALLS, Builder, built_from

PRUNED = ("nested", "independent", "usnet", "once_for_all", "surrogate")  # the others compute on inputs of the CPU


class DeviceBuilder(Builder):
    """Builds networks; families of pruned networks of a GPU on the GPU."""

    def build(self, recipe: FamilyRecipe, limit_s: float = 600.0) -> Reply:
        if recipe.network.device == "cpu" or recipe.scaling.name not in PRUNED:
            return super().build(recipe, limit_s)
        return built_from(recipe, obtain_family_there(recipe, BUILD_CALLS * limit_s), limit_s)


def obtain_family_there(recipe: FamilyRecipe, limit_s: float) -> Weights:
    """Return a family from the cache, or build it on the device; the place in the cache is the usual one."""

    def build() -> Weights:
        from driftlab.platform.networks import architectures, predict  # torch: seconds
        from driftlab.platform.networks.training.pretrain import draw_data

        size, scaling = (network.height, network.width), limited(recipe.scaling, limit_s)
        model = architectures.build(network.network, network.classes, seed=0, size=size).eval()
        predict.load(model, artifacts.obtain(network))
        model.to(predict.torch_device(network.device))
        stored: Weights = scaling.store(scaling.build(model, draw_data(network)))
        return stored

    network = recipe.network
    name = f"{artifacts._file_name(recipe.scaling.name)}-{artifacts._file_name(network.network)}-{recipe.key()}"
    what = f"{recipe.scaling} from {network.network}"
    return artifacts._obtain(what, name, artifacts._family_origin(recipe), build)

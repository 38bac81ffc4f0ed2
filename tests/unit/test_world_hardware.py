"""The profiles of GPUs attain the speeds that were published for ResNet-50."""

import pytest

from driftlab.platform.core.records import Passes
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.world.cost import task_cost
from driftlab.platform.world.hardware import find

pytestmark = pytest.mark.slow

# Images per second in PyTorch and float32 (NVIDIA, DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5,
# release 21.03): training at its batch of 128, inference by batch. The H200's is derived, see `hardware.py`.
TRAINED = {("server-v100", 128): 367, ("server-h200", 256): 2 * 938}
INFERRED = {
    "server-v100": {1: 96, 8: 709, 32: 1127, 64: 1200},
    "server-t4": {1: 98, 8: 363, 32: 420, 64: 428},
}
FACTOR = 1.3


@pytest.fixture(scope="module")
def resnet50():
    return count_cost(build("resnet50", 1000, seed=0).eval(), 224, 224)


@pytest.mark.parametrize(("gpu", "batch"), TRAINED)
def test_training_attains_the_published_speed(resnet50, gpu, batch):
    predicted = batch / task_cost(resnet50, find(gpu), Passes((batch,), (batch,))).isolated_s
    assert 1 / FACTOR < predicted / TRAINED[gpu, batch] < FACTOR


@pytest.mark.parametrize("batch", [32, 64])
def test_training_in_small_batches_is_slower_but_close_to_the_published_speed(resnet50, batch):
    predicted = batch / task_cost(resnet50, find("server-v100"), Passes((batch,), (batch,))).isolated_s
    assert 1 / FACTOR < predicted / TRAINED["server-v100", 128] < 1.05


@pytest.mark.parametrize("gpu", INFERRED)
def test_inference_attains_the_published_speed_at_every_batch(resnet50, gpu):
    for batch, published in INFERRED[gpu].items():
        predicted = batch / task_cost(resnet50, find(gpu), Passes((batch,))).isolated_s
        assert 1 / FACTOR < predicted / published < FACTOR, batch

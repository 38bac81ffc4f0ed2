"""Hardware profiles: compute rate, memory bandwidth, memory and power.

The time of a network is, per layer, an overhead plus the maximum of compute time and transfer time (`cost.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le

from driftlab.errors import unknown_name
from driftlab.platform.world.accesses import MemoryModel
from driftlab.platform.world.profile import STRICT, parse

Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]


@dataclass(frozen=True)
class Energy:
    """Energy model: per multiply-accumulate, per byte of cache or DRAM, per megabyte read from storage.

    With `accesses`, memory accesses of networks and moved bytes are charged alone.
    """

    __pydantic_config__: ClassVar = STRICT

    mac_pj: NotNegative
    cache_pj_per_byte: NotNegative
    dram_pj_per_byte: NotNegative
    # An eMMC 4.5 reads 70 MB/s at no more than 250 mW (Li et al., FAST 2014). Dropping a network moves no byte.
    page_mj_per_mb: NotNegative = 3.6
    cached: Annotated[float, Ge(0), Le(1)] = 0.5  # share of the bytes that come from the cache
    accesses: MemoryModel | None = None  # AdaScale's Eq. 3 to 5


# 45 nm: a float multiply and add 3.7 + 0.9 pJ, four bytes from SRAM 5 pJ, from DRAM 640 pJ (Horowitz, ISSCC 2014).
PHYSICAL = Energy(mac_pj=4.6, cache_pj_per_byte=1.25, dram_pj_per_byte=160.0)
# Constants of AdaScale's released evaluator, which attributes the full power of a phone to its arithmetic.
CROWDHMT = Energy(mac_pj=5000.0, cache_pj_per_byte=0.05, dram_pj_per_byte=100.0)
ENERGIES: Mapping[str, Energy] = {
    "physical": PHYSICAL,
    "crowdhmt": CROWDHMT,
    "accesses": replace(PHYSICAL, accesses=MemoryModel()),
    "accesses-gpu": replace(PHYSICAL, accesses=MemoryModel(gpu_share=1.0)),
}

UFS, EMMC, SSD = 850e6, 250e6, 3.4e9  # storage: bytes/s of sequential reads


@dataclass(frozen=True)
class Hardware:
    """A device or server in the cost model."""

    __pydantic_config__: ClassVar = STRICT

    name: str
    macs_per_s: Positive
    bytes_per_s: Positive
    overhead_s: NotNegative  # per layer: its launch, independent of its size
    memory_bytes: Annotated[int, Gt(0)]
    idle_w: NotNegative
    busy_w: NotNegative
    energy: Energy = PHYSICAL
    load_s: NotNegative = 0.0  # per frame of a training step, to read it from storage
    prepare_s: NotNegative = 0.0  # per frame of a training step, to decode it on the CPU
    # Of the eMMC 4.5 of the energy model: sequential reads, and one of its 4000 random reads per second.
    storage_bytes_per_s: Positive = 70e6
    storage_latency_s: NotNegative = 250e-6  # before the first byte of a network

    def __post_init__(self) -> None:
        """Refuse a profile with less power when busy than when idle."""
        if self.busy_w < self.idle_w:
            raise ValueError(f"busy_w ({self.busy_w} W) must not be below idle_w ({self.idle_w} W)")

    def page_in_s(self, count: int) -> float:
        """Return the time of reading a network's bytes from storage; none for no bytes."""
        return self.storage_latency_s + count / self.storage_bytes_per_s if count else 0.0


HARDWARE: Mapping[str, Hardware] = {
    profile.name: profile
    for profile in (
        # Phones and the Pi: rates that small float networks attain on the CPU, not the chip's peak. Power: phones as
        # commonly measured with the screen dimmed (a case dissipates about 4 W), the Pi at its plug (idle 540 mA,
        # all cores 1280 mA, at 5 V). Storage: sequential reads of UFS 2.0 (850 MB/s) and eMMC 5.1 (250 MB/s) as Samsung
        # announced them, and a microSD card in the Pi's slot as fio shows it (the bus, DDR50, carries 50 MB/s).
        Hardware("phone-hi", 20e9, 10e9, 20e-6, 8_000_000_000, 0.5, 4.0, storage_bytes_per_s=UFS),
        Hardware("phone-lo", 4e9, 4e9, 60e-6, 3_000_000_000, 0.4, 2.5, storage_bytes_per_s=EMMC),
        Hardware("raspberry-pi-4", 1.2e9, 2e9, 150e-6, 4_000_000_000, 2.7, 6.4, storage_bytes_per_s=40e6),
        # Jetsons: float32 peak of the GPU (cores x clock), bandwidth, memory and power modes of NVIDIA's data sheets:
        # NX 384 cores at 1.1 GHz, LPDDR4x, 10-20 W; AGX Orin 64 GB 2048 cores at 1.3 GHz, LPDDR5, 15-60 W. A layer
        # costs at least a kernel launch from an Arm core. Both modules carry eMMC 5.1.
        Hardware("jetson-nx", 0.42e12, 59.7e9, 30e-6, 8_000_000_000, 5.0, 20.0, storage_bytes_per_s=EMMC),
        Hardware("jetson-agx-orin", 2.66e12, 204.8e9, 20e-6, 64_000_000_000, 9.0, 60.0, storage_bytes_per_s=EMMC),
        # Four cores at the 20 GMAC/s and 50 us per layer that PyTorch showed on one x86 core; two channels of DDR4-3200
        # at four fifths of their peak; a 28 W processor; an SSD on PCIe 3.0, as Samsung states for its 970 EVO.
        Hardware("laptop", 80e9, 40e9, 50e-6, 16_000_000_000, 5.0, 28.0, storage_bytes_per_s=SSD),
        # Servers: float32 peak, bandwidth, memory and board power of NVIDIA's data sheets (V100 SXM2 15.7 TFLOPS, T4
        # 8.1, H200 SXM 67, two per MAC), times the share of both that convolutions attain; idle power as nvidia-smi
        # commonly shows it. Share and launch of a layer are fitted to ResNet-50 in PyTorch and float32, as published by
        # NVIDIA (DeepLearningExamples, PyTorch, ResNet50 v1.5): V100 trains 367 images/s, and infers 96 (batch of 1),
        # 709 (8), 1127 (32) and 1200 (64); T4 infers 98, 363, 420 and 428. A test compares (test_world_hardware.py).
        # No float32 figure of an H200 was found: it has the share of the V100 and trains 1.8 times the 938 images/s
        # of an A100 in TF32 (NVIDIA); Lambda reports twice the speed of an A100 for vision networks on an H100.
        # Servers keep the default of storage: their networks are never paged.
        Hardware("server-v100", 0.9 * 7.85e12, 0.9 * 900e9, 50e-6, 16_000_000_000, 40.0, 300.0),
        Hardware("server-t4", 0.7 * 4.05e12, 0.7 * 320e9, 50e-6, 16_000_000_000, 10.0, 70.0),
        Hardware("server-h200", 0.9 * 33.5e12, 0.9 * 4.8e12, 50e-6, 141_000_000_000, 75.0, 700.0),
    )
}


def find(name: str) -> Hardware:
    """Return a preset by name."""
    if name not in HARDWARE:
        raise unknown_name("hardware", name, HARDWARE)
    return HARDWARE[name]


def from_mapping(given: Mapping[str, Any]) -> Hardware:
    """Parse the hardware of a spec; `preset` has the other fields, and `energy` may be a name of ENERGIES."""
    if "preset" in given:
        base = asdict(find(str(given["preset"])))
        given = {**base, **{key: value for key, value in given.items() if key != "preset"}}
    energy = given.get("energy")
    if isinstance(energy, str):
        if energy not in ENERGIES:
            raise unknown_name("energy", energy, ENERGIES)
        given = {**given, "energy": asdict(ENERGIES[energy])}
    elif isinstance(energy, Mapping) and "accesses" in energy:
        given = {**given, "energy": {**asdict(PHYSICAL), **energy}}
    return parse(Hardware, "hardware", given)

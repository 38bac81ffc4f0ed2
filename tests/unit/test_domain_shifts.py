"""Common corruptions against a second implementation of their definitions, and the other shifts."""

from __future__ import annotations

import io
import math

import cv2
import numpy as np
import pytest
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from PIL import Image
from scipy import ndimage

from driftlab.datasets.catalogue import open_stream
from driftlab.datasets.domains.canvas import enlarge, plasma, streak
from driftlab.datasets.domains.constants import constants_of
from driftlab.datasets.domains.corruptions import CORRUPTIONS
from driftlab.datasets.domains.names import SHIFTS
from driftlab.datasets.domains.orders import Domain
from driftlab.datasets.domains.shifts import shifted

EVERY = [shift for shift in SHIFTS.values() if shift.name != "clean" and not shift.picks]


def picture(side: int = 32) -> np.ndarray:
    stream = open_stream("streets/driving_la", seed=1, height=side, width=side, fps=1, duration_s=60)
    return stream.at([20.0]).images[0]


PICTURES = {side: picture(side) for side in (32, 64)}


def drawn(name: str, severity: int, side: int = 32, seed: int = 7) -> np.ndarray:
    return shifted(PICTURES[side], Domain(name, severity), np.random.default_rng(seed)).astype(int)


def agrees(name: str, severity: int, wanted: np.ndarray, side: int = 32) -> bool:
    """Compare within one grey value, which published pictures lose by truncation."""
    return np.abs(drawn(name, severity, side) - np.clip(wanted, 0, 1) * 255).max() <= 1.0


@pytest.mark.parametrize("shift", EVERY, ids=lambda shift: shift.name)
def test_every_shift_is_a_function_of_the_generator_and_changes_the_image(shift):
    for side in PICTURES:
        first, same, strong = drawn(shift.name, 3, side), drawn(shift.name, 3, side), drawn(shift.name, 5, side)
        assert np.array_equal(first, same) and not np.array_equal(first, PICTURES[side])
        assert np.array_equal(first, strong) != shift.graded and first.shape == (side, side, 3)


@pytest.mark.parametrize("shift", EVERY, ids=lambda shift: shift.name)
def test_shifts_apply_to_rectangular_and_black_images(shift):
    for odd in (np.zeros((24, 40, 3), np.uint8), np.full((50, 36, 3), 255, np.uint8)):
        found = shifted(odd, Domain(shift.name, 5), np.random.default_rng(0))
        assert found.shape == odd.shape and found.dtype == np.uint8


@pytest.mark.parametrize("severity", [1, 5])
@pytest.mark.parametrize("side", [32, 64])
class TestDefinitions:
    def test_brightness_and_saturation_change_hsv_space(self, severity, side):
        hsv = rgb_to_hsv(PICTURES[side] / 255)
        bright, (factor, addend) = hsv.copy(), constants_of("saturate", severity, side)
        bright[..., 2] = np.clip(bright[..., 2] + constants_of("brightness", severity, side)[0], 0, 1)
        assert agrees("brightness", severity, hsv_to_rgb(bright), side)
        hsv[..., 1] = np.clip(hsv[..., 1] * factor + addend, 0, 1)
        assert agrees("saturate", severity, hsv_to_rgb(hsv), side)

    def test_contrast_scales_around_the_mean(self, severity, side):
        plain, (factor,) = PICTURES[side] / 255, constants_of("contrast", severity, side)
        mean = plain.mean(axis=(0, 1), keepdims=True)
        assert agrees("contrast", severity, (plain - mean) * factor + mean, side)

    def test_zoom_is_the_mean_of_enlarged_centres(self, severity, side):
        plain = PICTURES[side] / 255
        factors = np.arange(1, *constants_of("zoom_blur", severity, side))
        for factor in factors[1:]:
            cut = math.ceil(side / factor)
            start = (side - cut) // 2
            large = ndimage.zoom(plain[start : start + cut, start : start + cut], (factor, factor, 1), order=1)
            trim = (len(large) - side) // 2
            wanted = large[trim : trim + side, trim : trim + side]
            assert np.abs(enlarge(plain, factor)[: len(wanted), : len(wanted)] - wanted).max() < 1e-9
        mean = (plain + sum(enlarge(plain, factor) for factor in factors)) / (len(factors) + 1)
        assert agrees("zoom_blur", severity, mean, side)

    def test_pixelate_and_jpeg_equal_pillow(self, severity, side):
        image, few = Image.fromarray(PICTURES[side]), int(side * constants_of("pixelate", severity, side)[0])
        coarse = image.resize((few, few), Image.Resampling.BOX).resize((side, side), Image.Resampling.BOX)
        assert agrees("pixelate", severity, np.asarray(coarse) / 255, side)
        packed = io.BytesIO()
        image.save(packed, "JPEG", quality=int(constants_of("jpeg_compression", severity, side)[0]))
        assert agrees("jpeg_compression", severity, np.asarray(Image.open(packed)) / 255, side)

    def test_noise_has_the_strength_of_its_constant(self, severity, side):
        grey, rng = np.full((200, 200, 3), 0.5), np.random.default_rng(1)
        gaussian, shot, speckle, impulse = (
            CORRUPTIONS[name](grey, constants_of(name, severity, side), rng)
            for name in ("gaussian_noise", "shot_noise", "speckle_noise", "impulse_noise")
        )
        (deviation,), (photons,) = (constants_of(name, severity, side) for name in ("gaussian_noise", "shot_noise"))
        assert (gaussian - 0.5).std() == pytest.approx(deviation, rel=0.02)
        assert shot.std() == pytest.approx(math.sqrt(0.5 / photons), rel=0.02)
        assert speckle.std() == pytest.approx(0.5 * constants_of("speckle_noise", severity, side)[0], rel=0.02)
        share = constants_of("impulse_noise", severity, side)[0]
        assert (impulse != 0.5).mean() == pytest.approx(share, rel=0.1) and set(np.unique(impulse)) == {0, 0.5, 1}

    def test_blurs_spread_a_point_by_their_constants(self, severity, side):
        point, rng = np.zeros((101, 101, 3)), np.random.default_rng(0)
        point[50, 50] = 1
        spread = np.hypot(*np.mgrid[-50:51, -50:51])
        soft = CORRUPTIONS["gaussian_blur"](point, (3.0,), rng)[..., 0]
        assert math.sqrt((soft * spread**2).sum() / 2) == pytest.approx(3.0, rel=0.02)
        radius = constants_of("defocus_blur", severity, 224)[0]
        disc = CORRUPTIONS["defocus_blur"](point, (radius, 0.1), rng)[..., 0]
        assert disc.sum() == pytest.approx(1) and (disc[spread > radius + 2] < 1e-6).all()
        assert disc[50, 50] == pytest.approx(1 / (spread <= radius).sum(), rel=1e-3)


# Of each corruption for 32 and for 224 pixels, the sum of its constants, each times its severity and its place from 1.
# These values were compared with the published code.
TABLES = {
    "gaussian_noise": (1.26, 3.8),
    "shot_noise": (1850, 181),
    "impulse_noise": (0.69, 2.45),
    "speckle_noise": (2.26, 6.4),
    "gaussian_blur": (11.9, 60.0),
    "glass_blur": (106.75, 196.4),
    "defocus_blur": (23.1, 125.2),
    "motion_blur": (174.0, 565.0),
    "zoom_blur": (18.2, 19.29),
    "fog": (81.45, 86.2),
    "frost": (24.55, 30.8),
    "snow": (1729.7, 1937.55),
    "spatter": (183.04, 272.61),
    "contrast": (4.9, 2.25),
    "brightness": (3.0, 5.5),
    "saturate": (28.3, 129.3),
    "jpeg_compression": (784, 181),
    "pixelate": (11.55, 5.25),
    "elastic_transform": (168.64, 2735.24),
}


def test_constants_equal_the_published_ones():
    def mark(shift: str, side: int) -> float:
        rows = {severity: constants_of(shift, severity, side) for severity in range(1, 6)}
        return sum(severity * place * value for severity, row in rows.items() for place, value in enumerate(row, 1))

    assert len(TABLES) == 19
    for shift, marks in TABLES.items():
        assert (mark(shift, 32), mark(shift, 224)) == pytest.approx(marks, abs=1e-4), shift


def test_lengths_scale_with_the_image():
    assert constants_of("gaussian_blur", 5, 224) == (6,) and constants_of("gaussian_blur", 5, 112) == (3,)
    assert constants_of("glass_blur", 4, 112) == (0.55, 1.5, 2) and constants_of("fog", 5, 64) == (3, 1.4)
    assert constants_of("gaussian_blur", 5, 32) == (1,) and constants_of("elastic_transform", 2, 32)[1] == 6.4


def test_a_streak_is_half_a_gaussian():
    point = np.zeros((21, 21))
    point[10, 10] = 1
    weights = np.exp(-(np.arange(7) ** 2) / (2 * 2.0**2))
    flat, steep = streak(point, 3, 2.0, 0), streak(point, 3, 2.0, 90)
    for found, along in ((flat, flat[10, 4:11]), (steep, steep[4:11, 10])):
        assert np.abs(along[::-1] - weights / weights.sum()).max() < 1e-12 and found.sum() == pytest.approx(1)


def test_clouds_with_slower_decay_are_rougher():
    rough = [np.abs(np.diff(plasma(64, 48, decay, np.random.default_rng(3)), axis=0)).mean() for decay in (3, 2, 1.4)]
    assert rough[0] < rough[1] < rough[2] and plasma(64, 48, 2, np.random.default_rng(3)).shape == (64, 48)
    cloud = plasma(64, 64, 2, np.random.default_rng(3))
    assert (cloud.min(), cloud.max()) == (0, 1)


def test_fog_preserves_the_maximum_and_snow_whitens():
    assert all(drawn("fog", severity).max() <= PICTURES[32].max() for severity in (1, 5))
    light = [drawn("snow", severity).mean() for severity in (1, 2, 5)]
    assert PICTURES[32].mean() < light[0] < light[1] < light[2]


def test_glass_blur_moves_inner_pixels_only():
    plain, rng = PICTURES[32] / 255, np.random.default_rng(0)
    found = CORRUPTIONS["glass_blur"](plain, (0.0, 1, 1), rng)
    assert np.array_equal(np.rint(found[:2] * 255), PICTURES[32][:2]) and not np.array_equal(found, plain)
    values = {tuple(pixel) for pixel in np.rint(found * 255).astype(int).reshape(-1, 3)}
    assert values <= {tuple(pixel) for pixel in PICTURES[32].astype(int).reshape(-1, 3)}


def test_an_elastic_transform_without_displacement_is_the_identity():
    plain = PICTURES[32] / 255
    assert np.allclose(CORRUPTIONS["elastic_transform"](plain, (0.0, 1.0, 0.0), np.random.default_rng(0)), plain)


def test_inversion_and_background_are_differences():
    assert np.array_equal(drawn("inversion", 1), 255 - PICTURES[32].astype(int))
    black = shifted(np.zeros((32, 32, 3), np.uint8), Domain("background", 5), np.random.default_rng(0))
    assert black.max() == pytest.approx(0.8 * 255, abs=1)
    assert cv2.cvtColor(black, cv2.COLOR_RGB2HSV)[..., 1].mean() > 50

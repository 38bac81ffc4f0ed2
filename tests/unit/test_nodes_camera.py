"""The device: every frame of a window once, and the damage of sent frames on the link."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest

from driftlab.datasets.catalogue import open_stream
from driftlab.platform.sim.nodes.camera import CameraNode
from driftlab.platform.sim.setting import StreamSpec
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.streaming.wire.samples import CODECS, receive
from driftlab.platform.world.link import MessageDamage

SPEC = StreamSpec("streets/running", 3, 32, 48, 2.5, 10.0, (("noise", 0.5),))
SIZE = 32, 48


def stream():
    return open_stream("streets/running", seed=3, height=32, width=48, fps=2.5, duration_s=10.0, noise=0.5)


def test_windows_show_every_frame_once():
    device = CameraNode(SPEC)
    edges = (0.0, 0.4, 1.3, 4.0, 7.7, 10.0, 12.0)
    parts = [device.capture(start_s, stop_s) for start_s, stop_s in itertools.pairwise(edges)]
    times_s = np.concatenate([part.payload.times_s for part in parts])
    assert times_s.tolist() == (np.arange(25) / 2.5).tolist()
    assert [part.facts.frames for part in parts] == [len(part.payload) for part in parts]
    images = np.concatenate([part.payload.images for part in parts])
    assert np.array_equal(images, stream().at(times_s).images)


@pytest.mark.parametrize("codec", ["png", "jpeg"])
def test_received_frames_are_decoded_and_have_no_truth(codec):
    times_s = (0.4, 2.0, 7.6)
    sampling = Sampling(times_s, 8.0, codec=codec)
    reply = CameraNode(SPEC).upload(sampling)
    found, seen = receive(reply.payload, sampling, SIZE), stream().at(times_s)
    lost = np.abs(found.payload.images.astype(int) - seen.images).mean()
    assert lost == 0 if codec == "png" else 0 < lost < 20
    assert found.payload.labels is None
    assert found.payload.times_s.tolist() == list(times_s)
    assert (found.facts.frames, found.facts.refused) == (3, "")
    facts = reply.facts
    assert (facts.frames, facts.newest_s) == (3, 7.6)
    assert 0 < facts.bytes < found.payload.images.nbytes


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("scale", [1, 2, 3])
def test_the_payload_is_counted_to_the_byte(codec, scale):
    reply = CameraNode(SPEC).upload(Sampling((0.4, 2.0, 7.6), 8.0, codec=codec, scale=scale))
    assert isinstance(reply.payload, bytes)
    assert reply.facts.bytes == len(reply.payload) <= reply.facts.gross_bytes


def test_samples_that_stay_on_the_device_are_whole_but_for_their_truth():
    times_s = (0.4, 2.0, 7.6)
    reply, seen = CameraNode(SPEC).sample(Sampling(times_s, 8.0)), stream().at(times_s)
    assert (reply.facts.frames, reply.facts.bytes, reply.facts.newest_s) == (3, 0, 7.6)
    assert np.array_equal(reply.payload.images, seen.images)
    assert np.array_equal(reply.payload.scenes, seen.scenes)
    assert reply.payload.labels is None
    assert np.array_equal(CameraNode(SPEC).sample_with_truth(times_s).payload.labels, seen.labels)


@pytest.mark.parametrize("codec", ["png", "jpeg", "h264"])
@pytest.mark.parametrize("kind", ["cut", "bits"])
def test_payloads_damaged_by_the_link_are_refused_and_counted(codec, kind):
    device, sampling = CameraNode(SPEC), Sampling((0.4, 2.0), 8.0, codec=codec)
    whole = device.upload(sampling)
    for seed in range(8):
        torn = receive(whole.payload, sampling, SIZE, MessageDamage(kind, seed))
        assert torn.payload is None
        assert torn.facts.frames == 0
        assert torn.facts.refused.startswith("torn")


def test_a_larger_upload_has_more_pixels_and_is_scaled_to_the_student_s_size():
    times_s = (0.4, 2.0, 7.6)
    samplings = [Sampling(times_s, 8.0, codec="png", scale=scale) for scale in (1, 2)]
    small, large = (CameraNode(SPEC).upload(sampling) for sampling in samplings)
    seen, images = stream().at(times_s), receive(large.payload, samplings[1], SIZE).payload.images
    assert images.shape == seen.images.shape
    assert large.facts.bytes > 2 * small.facts.bytes
    apart = np.abs(images.astype(int) - seen.images).mean()
    others = np.abs(images[::-1].astype(int) - seen.images).mean()
    assert apart < others / 2
    wide = open_stream("streets/running", seed=3, height=64, width=96, fps=2.5, duration_s=10.0, noise=0.5).at(times_s)
    by_hand = [wide.images[i][:2, :2].reshape(4, 3).mean(axis=0) for i in range(3)]
    assert np.abs(images[:, 0, 0] - np.array(by_hand)).max() <= 0.5


def test_a_larger_upload_may_be_torn_as_well():
    sampling = Sampling((0.4,), 8.0, codec="jpeg", scale=2)
    torn = receive(CameraNode(SPEC).upload(sampling).payload, sampling, SIZE, MessageDamage("cut", 1))
    assert torn.facts.refused.startswith("torn")


def test_a_checkpoint_does_not_contain_the_open_stream():
    device = CameraNode(SPEC)
    before = device.capture(0.0, 2.0)
    kept = pickle.dumps(device)
    assert len(kept) < 1000
    restored = pickle.loads(kept)
    assert restored._streams == {}
    again = restored.capture(0.0, 2.0)
    assert np.array_equal(again.payload.images, before.payload.images)

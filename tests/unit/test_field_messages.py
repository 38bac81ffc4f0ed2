"""Framing of messages: uploads and results are decoded as encoded, and other bytes are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from driftlab.errors import RequestError, WireError
from driftlab.platform.field.messages import (
    FORMAT,
    RESULT,
    SAMPLES,
    DeviceStatus,
    ResultMessage,
    SampleMessage,
    decode_results,
    decode_samples,
    decode_status,
    dump_state,
    load_state,
)
from driftlab.platform.field.request import experiment_of, parse_session_request
from driftlab.platform.streaming.ams import Ams
from driftlab.platform.streaming.base import Sampling, StreamFacts
from driftlab.platform.streaming.just_in_time import JustInTime
from driftlab.platform.streaming.on_device import Learned, OnDevice
from driftlab.platform.streaming.one_time import OneTime
from driftlab.platform.streaming.rates import Rates
from driftlab.platform.streaming.remote_tracking import RemoteTracking

FACTS = StreamFacts(4.0, 60.0)
WORKLOAD = {"name": "streets/running"}


def sample(frames=(1, 5, 9), fps=4.0, **settings):
    times_s = tuple(frame / fps for frame in frames)
    return SampleMessage(7, 2.5, Sampling(times_s, 2.5, codec="h264", **settings), b"payload")


@pytest.mark.parametrize("frames", [(1, 5, 9), (0,), (3, 4, 9)])
@pytest.mark.parametrize("fps", [4.0, 30.0, 29.97])
def test_an_upload_is_decoded_as_encoded(frames, fps):
    message = replace(sample(frames, fps, scale=2, stamp="receipt"), runs=frames[0])
    assert decode_samples(message.encode(fps), fps) == message


def test_evenly_spaced_samples_add_no_bytes():
    framing = len(sample().encode(4.0)) - len(b"payload")
    assert framing == SAMPLES.size + len("h264") == 25
    assert len(sample((3, 4, 9)).encode(4.0)) == len(sample().encode(4.0)) + 4


def test_mutated_uploads_raise_no_other_error():
    body, rng = sample((3, 4, 9)).encode(4.0), np.random.default_rng(0)
    for _ in range(500):
        data = bytearray(body[: rng.integers(len(body) + 1)])
        for place in rng.integers(len(data), size=3) if data else ():
            data[place] = rng.integers(256)
        try:
            message = decode_samples(bytes(data), 4.0)
        except WireError:
            continue
        assert list(message.sampling.times_s) == sorted(set(message.sampling.times_s))


def test_a_report_has_few_bytes_and_is_decoded_as_encoded():
    status = DeviceStatus(1234.5, 29.97, None, 0.625)
    assert decode_status(status.encode()) == status
    assert len(DeviceStatus(1234.5678912, 29.97, 12.3456789, 0.1234567).encode()) < 40


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[1,2,3]",
        "[1,2,3,4,5]",
        "[null,1,1,1]",
        "[NaN,1,1,1]",
        "[1,1e300,1,1]",
        "[1,-1,1,1]",
        "[" * 5000,
    ],
)
def test_other_reports_are_refused(text: str):
    with pytest.raises(WireError):
        decode_status(text)


@pytest.mark.parametrize("version", [1, FORMAT + 1])
def test_messages_of_another_version_are_refused_with_one_sentence(version: int):
    upload = bytes([version]) + sample().encode(4.0)[1:]
    result = bytes([version]) + ResultMessage(1, "labels", b"null", b"labels").encode(4.0)[1:]
    for read in (lambda: decode_samples(upload, 4.0), lambda: list(decode_results(result, 4.0))):
        with pytest.raises(
            WireError, match=rf"uses version {version} of the protocol and this program version {FORMAT};"
        ):
            read()


def test_a_repeated_frame_is_refused():
    body = sample((3, 4, 9)).encode(4.0)
    listed = np.array([1, 5], dtype="<u2").tobytes()
    assert body.count(listed) == 1
    with pytest.raises(WireError):
        decode_samples(body.replace(listed, np.array([0, 6], dtype="<u2").tobytes()), 4.0)


def test_results_are_decoded_in_sequence():
    plan = dump_state(Rates(0.5, 12.0, True, (0.5, 0.25)))
    sent = [ResultMessage(1, "update", plan, b"delta"), ResultMessage(2, "labels", b"null", b"labels", 1.25)]
    data = b"".join(message.encode(4.0) for message in sent)
    assert list(decode_results(data, 4.0)) == sent
    assert len(data) == 2 * RESULT.size + len(plan) + len(b"deltanulllabels")
    with pytest.raises(WireError):
        list(decode_results(data[:-1], 4.0))


@pytest.mark.parametrize(
    ("member", "state"),
    [
        (Ams(), Rates(0.5, 12.0, True, (0.5, 0.25))),
        (JustInTime(), 1.5),
        (RemoteTracking(), None),
        (OneTime(), True),
        (OnDevice(), Learned(3)),
    ],
)
def test_a_state_is_loaded_as_dumped(member, state):
    assert load_state(member, FACTS, dump_state(state)) == state


@pytest.mark.parametrize(
    "plan",
    [
        b"[1,2,3,4,5,6,7]",
        b"[1]",
        b"",
        b"[" * 10**5,
        b"[NaN,10,false,[],0]",
        b"[1e999,10,false,[],0]",
        b'["1",10,false,[],0]',
        b'{"fps":1}',
        b"[100,10,false,[],0]",
        b"[0.5,1e9,false,[],0]",
        b"[0.5,0.001,false,[],0]",
        b"[0.5,-10,false,[],0]",
        b"[0.5,10,false,[" + b"1," * 10**5 + b"1],0]",
    ],
    ids=range(13),
)
def test_a_state_that_a_member_cannot_have_is_refused(plan):
    with pytest.raises(WireError) as caught:
        load_state(Ams(), FACTS, plan)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "asked",
    [
        {"workload": {"name": "video:/etc/passwd"}},
        {"workload": {"name": "streets/../x"}},
        {"workload": WORKLOAD, "student": {"weights": "/etc/passwd"}},
        {"workload": WORKLOAD, "system": {"name": "mine", "streaming": "/tmp/code.py:Mine"}},
        {"workload": WORKLOAD, "system": {"name": "mine", "streaming": {"name": "/tmp/code.py:Mine"}}},
        {"workload": WORKLOAD, "system": "/tmp/code.py"},
        {"workload": {"name": "streets/running", "duration_s": 1e9}},
        {"workload": WORKLOAD, "task": "detection"},
    ],
)
def test_a_request_over_the_network_cannot_name_a_file(asked):
    with pytest.raises(RequestError):
        experiment_of(parse_session_request(asked))


def test_a_member_in_a_file_is_not_loaded(tmp_path):
    code, mark = tmp_path / "code.py", tmp_path / "loaded"
    code.write_text(f"open({str(mark)!r}, 'w')")
    system = {"name": "mine", "streaming": {"name": f"{code}:Mine"}}
    with pytest.raises(RequestError):
        experiment_of(parse_session_request({"workload": WORKLOAD, "system": system}))
    assert not mark.exists()


STORED = json.loads((Path(__file__).parent.parent / "fixtures/field/messages.json").read_text("utf-8"))


def test_messages_that_this_version_wrote_are_read_for_as_long_as_it_has_the_number():
    stored = {name: bytes.fromhex(value) for name, value in STORED[str(FORMAT)].items() if name != "report"}
    upload = decode_samples(stored["upload"], 4.0)
    assert (upload.number, upload.runs, upload.sampling.times_s, upload.payload) == (
        7,
        1,
        (0.75, 1.0, 2.25),
        b"payload",
    )
    assert upload.encode(4.0) == stored["upload"]
    update, labels = decode_results(stored["results"], 4.0)
    assert load_state(Ams(), FACTS, update.plan) == Rates(0.5, 12.0, slow=True, recent_fps=(0.5, 0.25))
    assert (update.number, update.payload, labels.kind, labels.captured_s) == (1, b"delta", "labels", 1.25)
    assert decode_status(STORED[str(FORMAT)]["report"]) == DeviceStatus(12.5, 3.75, 81.0, 0.5)


@pytest.mark.parametrize("version", [version for version in STORED if version != str(FORMAT)])
def test_messages_of_the_version_before_are_refused_by_their_number(version):
    for name, decode in (("upload", decode_samples), ("results", lambda body, fps: list(decode_results(body, fps)))):
        with pytest.raises(WireError, match=f"version {version} of the protocol and this program version {FORMAT}"):
            decode(bytes.fromhex(STORED[version][name]), 4.0)

"""The journal of a device and its waiting uploads survive a kill and a power cut."""

from __future__ import annotations

import threading
import zlib
from dataclasses import replace

import numpy as np
import pytest
from delta_factory import change, layout

from driftlab.errors import DataError, RequestError
from driftlab.platform.core.records import Applied, Uploaded
from driftlab.platform.field import network_cache
from driftlab.platform.field import outbox as outbox_module
from driftlab.platform.field.journal import HEAD, MAGIC, Clocks, Journal, read_entries
from driftlab.platform.field.messages import ResultMessage
from driftlab.platform.field.network_cache import CachedNetwork
from driftlab.platform.field.outbox import Outbox, WaitingUpload
from driftlab.platform.networks.state import NO_BUFFERS
from driftlab.platform.sim.ledger import Account, Ledger
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.streaming.wire import channel_mask, delta


def journal_of(path, entries=3):
    """Write a journal with a frame per entry."""
    journal, ledger, account = Journal(path), Ledger(), Account()
    for number in range(entries):
        ledger.row("frames", frame=number, score=np.float32(0.5))
        ledger.add("classes", {"name": ["road"], "hits": np.array([number])})
        account.frames += 1
        journal.add(
            Clocks.read(float(number), None), ledger, account, {"up": number}, {number: (1.5, Applied(1, True))}
        )
    journal.close()
    journal.run()
    return ledger


@pytest.mark.slow
def test_entries_are_read_as_written(tmp_path):
    ledger = journal_of(tmp_path / "journal")
    entries = read_entries(tmp_path / "journal")
    joined = Ledger()
    for entry in entries:
        joined.take(entry.rows)
    assert joined.rows == ledger.rows
    assert [entry.account.frames for entry in entries] == [1, 2, 3]
    assert entries[-1].outcomes == {2: (1.5, Applied(1, True))}
    assert entries[-1].messages == {"up": 2}
    assert read_entries(tmp_path / "none") == []


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_power_cut_costs_the_last_entry_only(tmp_path, damage):
    path = tmp_path / "journal"
    journal_of(path, 2)
    whole = len(path.read_bytes())
    journal_of(path, 1)
    data = bytearray(path.read_bytes())
    for stop in range(whole, len(data), 97):
        if damage == "cut":
            path.write_bytes(data[:stop])
        else:
            path.write_bytes(data[:stop] + bytes([data[stop] ^ 1]) + data[stop + 1 :])
        assert len(read_entries(path)) == 2
        assert len(path.read_bytes()) == whole
        journal_of(path, 1)  # it goes on after the last whole entry
        assert len(read_entries(path)) == 3


def test_a_journal_of_another_version_is_refused(tmp_path):
    path = tmp_path / "journal"
    journal_of(path, 1)
    body = path.read_bytes()[HEAD.size :].replace(b"journal:JournalEntry", b"journal:JournalEnter")
    path.write_bytes(HEAD.pack(MAGIC, len(body), zlib.crc32(body)) + body)
    with pytest.raises(RequestError, match="by the version of driftlab that wrote it"):
        read_entries(path)


def test_a_journal_of_another_format_is_refused_and_kept(tmp_path):
    path = tmp_path / "journal"
    journal_of(path, 1)
    path.write_bytes(b"dj99" + path.read_bytes()[len(MAGIC) :])
    before = path.read_bytes()
    with pytest.raises(RequestError, match="by the version of driftlab that wrote it"):
        read_entries(path)
    assert path.read_bytes() == before


def test_a_full_disk_is_reported(tmp_path):
    journal = Journal(tmp_path / "missing" / "journal")
    journal.add(Clocks.read(0.0, None), Ledger(), Account(), {}, {})
    with pytest.raises(DataError, match="Rows cannot be written"):
        journal.run()


LAYOUT = layout(20)
STATE = np.random.default_rng(1).normal(0, 1, 20).astype(np.float32), NO_BUFFERS


def result_of(number, *, alone=False, mask=b""):
    """Return an update of 5 of 20 weights, or of all of them."""
    payload = delta.encode(change(20, 5, number, number, None if alone else number - 1), LAYOUT, delta.Format()).data
    return ResultMessage(number, "update", b"0", mask + payload)


def numbers_of(folder):
    return [result.number for result, _ in CachedNetwork(folder).results(4.0)]


def cache_of(folder):
    cache = CachedNetwork(fetched={"weights": bytes(1000)})
    cache.begin(folder)
    return cache


def test_an_update_with_all_weights_replaces_the_older_ones(tmp_path):
    cache = cache_of(tmp_path)
    for number in (1, 2):
        cache.add(result_of(number), 4.0)
    older = {file.name: file.read_bytes() for file in (tmp_path / network_cache.FOLDER).glob("0*")}
    cache.add(result_of(3, alone=True), 4.0)
    cache.add(result_of(4), 4.0)
    assert numbers_of(tmp_path) == [3, 4]
    assert len(list((tmp_path / network_cache.FOLDER).glob("0*"))) == 2
    (tmp_path / network_cache.FOLDER / "00000002").write_bytes(older["00000002"])  # a power cut undid its deletion
    assert numbers_of(tmp_path) == [3, 4]


def test_updates_that_outgrow_the_network_are_to_be_replaced(tmp_path):
    cache, sizes = cache_of(tmp_path), []
    while not cache.is_long:
        cache.add(result_of(len(sizes) + 1), 4.0)
        sizes.append(len(result_of(len(sizes) + 1).encode(4.0)))
    assert sum(sizes[:-1]) <= 1000 < sum(sizes)
    cache.add(replace(result_of(len(sizes)), payload=delta.encode_state(*STATE, LAYOUT, len(sizes))), 4.0)
    assert not cache.is_long
    (result, _) = next(iter(CachedNetwork(tmp_path).results(4.0)))
    held = delta.apply(result.payload, np.zeros(20, np.float32), LAYOUT, base=0)
    assert (held.version, held.vector.tolist()) == (len(sizes), STATE[0].tolist())


def test_updates_of_a_part_of_a_network_stay(tmp_path):
    cache = cache_of(tmp_path)
    cache.add(result_of(1, mask=channel_mask.encode({"a": np.arange(3)}, b"")), 4.0)
    for number in range(2, 30):
        cache.add(result_of(number, alone=number == 9), 4.0)
    assert not cache.is_long
    assert numbers_of(tmp_path) == list(range(1, 30))


def upload(time_s, size=10):
    sampling = Sampling((time_s,), time_s, codec="png")
    return WaitingUpload(sampling, Uploaded(1, size, size, time_s, 0.0), bytes(size), None, time_s)


def queue_of(box):
    return [(one.queued_s, one.number) for one in box.waiting]


def test_the_oldest_upload_is_dropped_but_not_the_one_that_is_being_sent(tmp_path, monkeypatch):
    monkeypatch.setattr(outbox_module, "MAX_WAITING", 3)
    box = Outbox()
    box.open(tmp_path)
    for number in range(3):
        assert box.put(upload(float(number))) == []
    box.begin(box.first(0), 7)
    dropped = [one.queued_s for number in range(3, 6) for one in box.put(upload(float(number)))]
    assert dropped == [1.0, 2.0, 3.0]
    assert queue_of(box) == [(0.0, 7), (4.0, None), (5.0, None)]
    resumed = Outbox()
    resumed.open(tmp_path)
    assert queue_of(resumed) == queue_of(box)
    resumed.done(resumed.first(0))
    resumed.put(upload(6.0))
    assert queue_of(resumed) == [(4.0, None), (5.0, None), (6.0, None)]
    assert len(list((tmp_path / outbox_module.FOLDER).iterdir())) == 3


def test_uploads_of_many_bytes_are_dropped_earlier(monkeypatch):
    monkeypatch.setattr(outbox_module, "MAX_WAITING_BYTES", 100)
    box = Outbox()
    assert [len(box.put(upload(float(number), size=40))) for number in range(4)] == [0, 0, 1, 1]
    box.put(upload(9.0, size=500))
    assert queue_of(box) == [(9.0, None)]


def test_the_sending_thread_waits_for_an_upload():
    box, found = Outbox(), []
    thread = threading.Thread(target=lambda: found.append(box.first(20.0)))
    thread.start()
    box.put(upload(1.0))
    thread.join(20)
    assert [one.queued_s for one in found] == [1.0]
    assert Outbox().first(0.0) is None

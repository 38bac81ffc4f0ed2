"""Sets of variants: knees, paged bytes of switches, and files of measurements."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from driftlab.errors import DataError, RequestError, RunError
from driftlab.platform.core.records import Variant
from driftlab.platform.world import measured
from driftlab.platform.world.measured import knee, paged_bytes

SIZES = (4, 9, 20, 36, 64)
PAGE = Path(__file__).resolve().parents[2] / "docs/methods/nestdnn.md"


def network(accuracy: float | None, memory_bytes: int, latency_s: float = 0.1) -> Variant:
    return Variant(f"{accuracy}-{memory_bytes}", accuracy, memory_bytes, latency_s)


def of_sizes(sizes) -> list[Variant]:
    return [network(0.5, int(size)) for size in sizes]


class TestSets:
    def test_the_knee_is_farthest_above_the_line(self):
        assert knee([network(0.5, 10), network(0.8, 100), network(0.9, 1000)]) == 1
        assert knee([network(0.9, 1000), network(0.8, 100), network(0.5, 10)]) == 1

    @pytest.mark.parametrize("accuracies", [(0.5, 0.5, 0.5), (None, None, None)])
    def test_without_a_bend_the_smallest_is_the_knee(self, accuracies):
        assert knee([network(a, size) for a, size in zip(accuracies, (30, 10, 20), strict=True)]) == 1


class TestVariants:
    @pytest.mark.parametrize(("memory_bytes", "latency_s"), [(10, math.nan), (10, math.inf), (10, -0.1), (-1, 0.1)])
    def test_incomparable_variants_are_refused(self, memory_bytes, latency_s):
        with pytest.raises(RunError, match="'a'"):
            Variant("a", 0.5, memory_bytes, latency_s)


class TestPaging:
    def test_nested_networks_page_the_difference_and_others_all(self):
        networks = of_sizes(SIZES)
        assert paged_bytes(networks, 1, 3, nested=True) == (27, 0)
        assert paged_bytes(networks, 3, 1, nested=True) == (0, 27)
        assert paged_bytes(networks, 1, 3, nested=False) == (36, 9)
        assert paged_bytes(networks, None, 2, nested=True) == paged_bytes(networks, None, 2, nested=False) == (20, 0)
        assert paged_bytes(networks, 2, None, nested=True) == paged_bytes(networks, 2, None, nested=False) == (0, 20)
        assert paged_bytes(networks, 2, 2, nested=False) == (0, 0)

    @pytest.mark.parametrize("seed", range(20))
    def test_the_identities_of_the_papers_tables_hold_to_the_byte(self, seed):
        """Sums over all switches up, or down: their numbers are equal, so that sums compare like means."""
        networks = of_sizes(np.sort(np.random.default_rng(seed).choice(np.arange(1, 1000), 5, replace=False)))
        ups = list(itertools.combinations(range(5), 2))
        loaded, dropped = {}, {}
        for way, step in (("up", 1), ("down", -1)):
            for nested in (True, False):
                moved = [paged_bytes(networks, *pair[::step], nested=nested) for pair in ups]
                loaded[way, nested], dropped[way, nested] = map(sum, zip(*moved, strict=True))
        assert loaded["up", False] - dropped["up", False] == loaded["up", True] > 0
        assert dropped["up", True] == loaded["down", True] == 0
        for nested in (True, False):
            assert (loaded["down", nested], dropped["down", nested]) == (dropped["up", nested], loaded["up", nested])
        assert loaded["up", False] + dropped["up", False] == 4 * sum(one.memory_bytes for one in networks)  # of 10

    @pytest.mark.parametrize("seed", range(20))
    def test_all_sizes_save_the_memory_of_all_but_the_largest(self, seed):
        """Memory of all variants if each is loaded in addition to the smaller ones, or separately."""
        networks = of_sizes(np.random.default_rng(seed).integers(1, 1000, 5))
        order = sorted(range(5), key=lambda which: networks[which].memory_bytes)
        steps = [paged_bytes(networks, *pair, nested=True) for pair in itertools.pairwise([None, *order])]
        apart = [paged_bytes(networks, None, which, nested=False) for which in order]
        (nested, *gone), (all_of_them, *_) = map(sum, zip(*steps, strict=True)), map(sum, zip(*apart, strict=True))
        sizes = [one.memory_bytes for one in networks]
        assert gone == [0]
        assert all_of_them - nested == sum(sizes) - max(sizes)


class TestMeasured:
    def write(self, folder: Path, text: str) -> Path:
        path = folder / "phone.csv"
        path.write_text(text)
        return path

    def test_units_are_converted_and_networks_ordered(self, tmp_path):
        text = (
            "app,variant,accuracy_percent,latency_ms,memory_mb,energy_mj,macs,note\n"
            "signs,large,90,40,2.5,8,1000,x\nsigns,small,70.5,10,1,,,y\nfaces,only,50,20,1,1,1,z\n"
        )
        found = measured.read(self.write(tmp_path, text))
        small, large = found["signs"]
        assert (small.name, small.memory_bytes, small.energy_j, small.macs) == ("small", 1_000_000, None, None)
        assert (large.name, large.memory_bytes, large.macs) == ("large", 2_500_000, 1000)
        assert (small.accuracy, small.latency_s) == pytest.approx((0.705, 0.01))
        assert (large.accuracy, large.latency_s, large.energy_j) == pytest.approx((0.9, 0.04, 0.008))
        assert [one.name for one in found["faces"]] == ["only"]

    def test_columns_are_renamed_and_devices_selected(self, tmp_path):
        path = self.write(tmp_path, "board,top1,latency_s\na,0.5,2\na,,1\nb,0.5,3\n")
        found = measured.read(path, {"top1": "accuracy"}, {"board": "a"})
        assert found == {"phone": (Variant("1", None, 0, 1.0), Variant("0", 0.5, 0, 2.0))}

    def test_partly_missing_sizes_are_refused(self, tmp_path):
        path = tmp_path / "some.csv"
        path.write_text("app,accuracy,latency_s,mb\na,0.7,0.1,3\na,0.8,0.2,\nb,0.9,0.3,\n")
        with pytest.raises(DataError, match=r"row 2: mb is empty.*row 3: mb is empty"):
            measured.read(path, {"mb": "memory_mb"})
        found = measured.read(path, {"mb": "memory_mb"}, {"app": "b"})  # none of the selected rows has a size
        assert [one.memory_bytes for one in found["b"]] == [0]

    def test_parquet_gives_the_same_as_csv(self, tmp_path):
        path = self.write(tmp_path, "app,accuracy,latency_s\na,0.5,2.0\na,0.6,3.0\n")
        parquet.write_table(pa.csv.read_csv(path), path.with_suffix(".parquet"))
        assert measured.read(path) == measured.read(path.with_suffix(".parquet"))

    def test_all_faults_are_reported_with_their_row(self, tmp_path):
        text = "app,variant,accuracy,latency_s\na,m,72.4,1\na,m,0.5,0\nb,m,0.5,nan\nb,n,0.1,x\n"
        with pytest.raises(DataError) as error:
            measured.read(self.write(tmp_path, text.replace(",x", ",-1")))
        for part in ("row 1: accuracy is 72.4", "row 2: latency_s is 0", "row 3", "row 4", "a has m 2 times"):
            assert part in str(error.value)

    @pytest.mark.parametrize(
        ("text", "part"),
        [
            ("app,accuracy\na,0.5\n", "no column of 'latency_s'"),
            ("latency_s,latency_ms,accuracy\n1,1,0.5\n", "'latency_s' is there 2 times"),
            ("variant,variant,latency_ms,accuracy\na,b,1,0.5\n", "'variant' is there 2 times"),
            ("accuracy,latency_s\n", "no rows"),
            ("", "cannot be read as csv"),
        ],
    )
    def test_a_file_of_another_shape_is_refused(self, tmp_path, text, part):
        with pytest.raises(DataError, match=part):
            measured.read(self.write(tmp_path, text))

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"only": {"device": "b"}}, ["only.device: Unknown value 'b'. Known: a, c."]),
            ({"only": {"device": "a", "batch": 64}}, ["no rows with {'device': 'a', 'batch': 64}"]),
            ({"only": {"device": ["a"]}}, ["only.device: Unknown value '['a']'."]),
            ({"only": {"latency": 3}}, ["only.latency: None of its 21 values is 3."]),
            ({"rename": {"top": "accuracy"}}, ["rename.top: Unknown column of the file 'top'. Did you mean 'top1'?"]),
            ({"rename": {"top1": "acuracy"}}, ["rename.top1: Unknown column 'acuracy'. Did you mean 'accuracy'?"]),
            ({"rename": {"top1": "accuracy", "batch": "accuracy", "latency": "latency_s"}}, ["'accuracy' is there 2"]),
            (
                {"rename": {"top1": "accuracy", "device": "app", "batch": "app"}},
                ["'app' is there 2", "no column of"],
            ),
            (
                {"rename": {"top": "acuracy"}, "only": {"devise": "a", "batch": 3}},
                [
                    "rename.top: Unknown column of the file 'top'.",
                    "rename.top: Unknown column 'acuracy'.",
                    "only.devise: Unknown column of the file 'devise'. Did you mean 'device'?",
                    "only.batch: Unknown value '3'. Did you mean '32'? Known: 32, 64.",
                ],
            ),
            (
                {"only": {"devise": "a"}},
                ["only.devise: ", "no column of 'accuracy'; no column of 'latency_s'; it"],
            ),
        ],
    )
    def test_missing_columns_and_values_are_refused_together(self, tmp_path, given, message):
        rows = "".join(f"{'ac'[k // 18]},{32 + k // 18 * 32},0.5,{k}.5\n" for k in range(21))
        path = self.write(tmp_path, f"device,batch,top1,latency\n{rows}")
        usual = {} if message[0].startswith("only.devise") else {"top1": "accuracy", "latency": "latency_s"}
        with pytest.raises(DataError) as error:
            measured.read(path, **{"rename": usual, **given})
        assert [part for part in message if part not in str(error.value)] == []
        assert str(error.value).startswith(f"{path}")
        assert str(error.value).endswith(".")

    def test_rows_are_selected_by_numbers_flags_and_empty_cells(self, tmp_path):
        path = self.write(tmp_path, "b,f,e,accuracy,latency_s\n32,true,,0.1,1\n64,false,7,0.2,2\n,false,7,0.3,3\n")

        def chosen(**only: object) -> list[float | None]:
            return [one.accuracy for one in measured.read(path, only=only)["phone"]]

        assert chosen(b=32) == chosen(b=32.0) == chosen(b="32") == chosen(f=True) == chosen(f="True") == [0.1]
        assert chosen(e=None) == [0.1]
        assert chosen(b=None) == [0.3]
        assert chosen(f=False, e=7) == [0.2, 0.3]

    def test_the_page_lists_every_column_with_units_and_options(self, tmp_path):
        section = PAGE.read_text(encoding="utf-8").partition("## Networks of your own")[2].partition("\n## ")[0]
        rows = dict(re.findall(r"^\| (`.+`) \| (.+) \|$", section, re.MULTILINE))
        listed = [re.findall(r"`(\w+)`", columns) for columns in rows]
        assert [name for names in listed for name in names] == list(measured.COLUMNS)
        for names in listed[2:]:
            assert len({measured.UNITS[name][0] for name in names}) == 1
        written = {"app": "a", "variant": "v", "macs": "3"} | dict.fromkeys(measured.UNITS, "0.5")
        needed = [names[0] for names in listed]
        for names, meaning in zip(listed, rows.values(), strict=True):
            given = [name for name in needed if name not in names]
            path = self.write(tmp_path, f"{','.join(given)}\n{','.join(written[name] for name in given)}\n")
            if "without it" in meaning or "may be missing" in meaning:
                assert measured.read(path)
            else:
                with pytest.raises(DataError, match=f"no column of '{measured.UNITS[names[0]][0]}'"):
                    measured.read(path)

    def test_another_kind_of_file_is_refused(self, tmp_path):
        with pytest.raises(RequestError, match=r"\.csv or \.parquet"):
            measured.read(tmp_path / "a.txt")
        with pytest.raises(DataError, match="cannot be read"):
            measured.read(tmp_path / "none.csv")

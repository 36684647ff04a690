"""Loading configs: names, paths, mappings; and every fault that a config can have."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from minitrain.errors import HardwareConfigError
from minitrain.machine import load_config, shipped_configs
from minitrain.machine.config import shipped_machines

NAMES = [
    "a100_40g",
    "a100_80g",
    "b200_192g_nvl8",
    "b300_288g_nvl8",
    "esp32",
    "gb200_nvl72",
    "gb300_nvl72",
    "gh200_96g_nvl4",
    "h100_80g_nvl8",
    "h100_96g_nvl8",
    "h200_141g_nvl8",
    "jetson_orin_nx",
    "l40s_48g_pcie8",
    "mi300x_192g_8",
    "mi325x_256g_8",
    "mi355x_288g_8",
    "phone",
    "rtx_2080ti",
    "rtx_3090",
    "specified_h100_80g_nvl8",
    "t4",
    "titan_rtx",
    "tpu_v4",
    "tpu_v5e",
    "tpu_v5p",
    "tpu_v6e",
    "tpu_v7x",
    "trn2",
    "v100_32g_nvl8",
    "xeon_8480plus",
]
NOT_FOR_TRAINING = {"esp32", "jetson_orin_nx", "phone", "xeon_8480plus"}


def tier(size: int = 8) -> dict[str, Any]:
    ops = {"p2p": [1, None], "reduce_scatter": [1, 0], "all_gather": [1, 0], "all_reduce": [1, 1]}
    fields = {"bandwidth": 450, "efficiency": 0.65, "size": size, "latency": 1e-5, "ops": ops}
    return {**fields, "must_be_filled": True, "processor_usage": 0.15}


def data() -> dict[str, Any]:
    memory = {"GiB": 80, "GBps": 3072, "MB_efficiency": [[100, 0.9], [0, 0.3]]}
    rates = {"float16": {"tflops": 1000, "gflops_efficiency": [[128, 0.95], [16, 0.9], [0, 0.1]]}}
    raw = {"matrix": rates, "vector": rates, "mem1": memory, "mem2": memory}
    copied: dict[str, Any] = json.loads(
        json.dumps({**raw, "processing_mode": "roofline", "networks": [tier(), tier(64)]})
    )
    return copied


def put(path: str, value: Any) -> dict[str, Any]:
    """Return a good config with one value replaced, or removed where the value is `...`."""
    config: Any = data()
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    place = config
    for key in parents:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return dict(config)


def saved(folder: Path, text: str | bytes, name: str = "mine.json") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def faults_of(source: Any) -> tuple[str, ...]:
    with pytest.raises(HardwareConfigError, match="expected") as caught:
        load_config(source)
    faults = caught.value.facts["faults"]
    assert isinstance(faults, tuple)
    return faults


def test_all_shipped_configs_are_listed_and_load() -> None:
    assert shipped_configs() == NAMES
    assert [load_config(name).name for name in NAMES] == NAMES
    assert load_config("tpu_v5p.json") is load_config("tpu_v5p")


@pytest.mark.parametrize("name", NAMES)
def test_each_shipped_config_can_price_a_run(name: str) -> None:
    config = load_config(name)
    if name not in NOT_FOR_TRAINING:
        assert config.processor.peak("float16") > 5e13
        assert config.processor.peak("float32", unit="vector") > 4e12
    assert config.mem2.GBps < config.mem1.GBps
    assert config.network(65536).size >= 65536


def test_the_specified_h100_spans_65536_ranks_and_others_a_million() -> None:
    assert max(tier.size for tier in load_config("specified_h100_80g_nvl8").networks) == 65536
    assert load_config("h200_141g_nvl8").network(2**20).size >= 2**20


def test_a_loaded_config_and_a_mapping_are_accepted() -> None:
    config = load_config({**data(), "name": "mine"})
    assert load_config(config) is config
    assert (config.name, load_config(data()).name) == ("mine", "custom")
    assert config == load_config(MappingProxyType({**data(), "name": "mine"}))
    assert config.processing_mode == "roofline"
    assert config.vector["float16"].tflops == 1000


def test_a_config_may_say_what_differs_from_a_shipped_one(tmp_path: Path) -> None:
    changes = {"like": "h100_96g_nvl8", "mem1.GBps": 2000, "networks[0].size": 4}
    path = saved(tmp_path, json.dumps(changes))
    found, usual = load_config(str(path)), load_config("h100_96g_nvl8")
    assert (found.name, found.mem1.GBps, found.networks[0].size, found.mem1.GiB) == ("mine", 2000, 4, 96)
    assert (found.matrix, found.networks[1]) == (usual.matrix, usual.networks[1])
    for path_to_nothing in ("matrix.float4.tflops", "networks[2].size", "mem3.GiB", "processing_mode.x", ""):
        assert "expected a key path of h100_96g_nvl8" in faults_of({"like": "h100_96g_nvl8", path_to_nothing: 1})[0]
    assert "expected the name of a shipped config" in faults_of({"like": "h100_99g"})[0]
    assert "mem1.GiB" in faults_of({"like": "h100_80g_nvl8", "mem1.GiB": -1})[0]


def test_rows_may_be_tuples_and_unknown_keys_are_ignored() -> None:
    config = put("mem1.MB_efficiency", ((100, 0.9), (0, 0.3)))
    config["networks"][0]["ops"]["all_to_all"] = (1, -1)
    assert load_config({**config, "comment": "mine", "author": {"deep": [1]}}).networks[0].ops["all_to_all"] == (1, -1)


def test_a_file_is_found_by_path_object_absolute_and_bare_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, b"\xef\xbb\xbf" + json.dumps(data()).encode())
    monkeypatch.chdir(tmp_path)
    loaded = [load_config(source) for source in (path, str(path), "mine.json", f".{os.sep}mine.json")]
    assert {config.name for config in loaded} == {"mine"}
    assert len(set(loaded)) == 1


def test_decoys_in_the_working_directory_never_shadow_a_shipped_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hw_configs").mkdir()
    for place in ("h100_80g_nvl8.json", "h100_80g_nvl8", "hw_configs/h100_80g_nvl8.json", "hw_configs/__init__.py"):
        saved(tmp_path, "decoy", place)
    monkeypatch.chdir(tmp_path)
    assert load_config("h100_80g_nvl8").mem1.GBps == load_config("h100_80g_nvl8.json").mem1.GBps == 3350
    with pytest.raises(HardwareConfigError, match=r"\./h100_80g_nvl8\.json: expected JSON"):
        load_config("./h100_80g_nvl8.json")


def test_files_of_the_field_load_unchanged(tmp_path: Path) -> None:
    """The layout of Calculon's systems/a100_80e.json, with its odd capacity and a different key order."""
    memory = '{"GiB": 80000000000, "GBps": 2048, "MB_efficiency": [[100, 0.95], [10, 0.90], [1, 0.7], [0, 0.3]]}'
    rates = '{"float16": {"tflops": 312, "gflops_efficiency": [[128, 0.99], [16, 0.9], [1, 0.6], [0, 0.1]]}}'
    text = f"""{{"matrix": {rates}, "vector": {rates}, "mem1": {memory}, "mem2": {memory},
      "processing_mode": "no_overlap", "networks": [{json.dumps(tier())}]}}"""
    config = load_config(saved(tmp_path, text))
    assert config.mem1.capacity_bytes == 80000000000 * 2**30
    assert config.processing_mode == "no_overlap"


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("matrix", ..., "matrix: expected an object of datatypes, found nothing"),
        ("matrix", {}, "matrix: expected an object with at least one datatype, found an object"),
        ("matrix", [], "matrix: expected an object of datatypes, found []"),
        ("vector", None, "vector: expected an object of datatypes, found null"),
        ("matrix.float16", 5, "matrix.float16: expected an object with tflops and gflops_efficiency, found 5"),
        ("matrix.float16.tflops", ..., "matrix.float16.tflops: expected a number > 0, found nothing"),
        ("matrix.float16.tflops", 0, "matrix.float16.tflops: expected a number > 0, found 0"),
        ("matrix.float16.tflops", -1.5, "matrix.float16.tflops: expected a number > 0, found -1.5"),
        ("matrix.float16.tflops", True, "matrix.float16.tflops: expected a number > 0, found true"),
        ("matrix.float16.tflops", "1000", 'matrix.float16.tflops: expected a number > 0, found "1000"'),
        ("matrix.float16.tflops", float("nan"), "matrix.float16.tflops: expected a number > 0, found NaN"),
        ("matrix.float16.tflops", float("inf"), "matrix.float16.tflops: expected a number > 0, found Infinity"),
        ("matrix.float16.tflops", 10**400, "matrix.float16.tflops: expected a number > 0, found a huge number"),
        (
            "matrix.float16.tflops",
            1e200,
            "matrix.float16.tflops: expected a number > 0, between 1e-100 and 1e+100 in magnitude, found 1e+200",
        ),
        ("matrix.float16.tflops", 1j, "matrix.float16.tflops: expected a number > 0, found a complex"),
        (
            "matrix.float16.gflops_efficiency",
            "x" * 50,
            "matrix.float16.gflops_efficiency: expected a list of rows [lower bound, efficiency], "
            f'found "{"x" * 40}..."',
        ),
        (
            "matrix.float16.gflops_efficiency",
            [],
            "matrix.float16.gflops_efficiency: expected rows with strictly descending lower bounds, the last one 0, "
            "found no rows",
        ),
        (
            "mem1.MB_efficiency",
            [[100, 0.9], [100, 0.8], [0, 0.3]],
            "mem1.MB_efficiency: expected rows with strictly descending lower bounds, the last one 0, "
            "found bounds 100, 100, 0",
        ),
        (
            "mem1.MB_efficiency",
            [[100, 0.9], [0.5, 0.8]],
            "mem1.MB_efficiency: expected rows with strictly descending lower bounds, the last one 0, "
            "found bounds 100, 0.5",
        ),
        ("mem1.MB_efficiency.0.1", 0, "mem1.MB_efficiency[0][1]: expected a number in (0, 1], found 0"),
        ("mem1.MB_efficiency.0.1", 1.01, "mem1.MB_efficiency[0][1]: expected a number in (0, 1], found 1.01"),
        ("mem1.MB_efficiency.0.0", -3, "mem1.MB_efficiency[0][0]: expected a number >= 0, found -3"),
        ("mem1.MB_efficiency.0", [1], "mem1.MB_efficiency[0][1]: expected a second value in the row, found nothing"),
        ("mem1.MB_efficiency.0", 7, "mem1.MB_efficiency[0]: expected a row [lower bound, efficiency], found 7"),
        (
            "mem1.MB_efficiency.0",
            [1, 1, 1],
            "mem1.MB_efficiency[0]: expected a row [lower bound, efficiency], found [1, 1, 1]",
        ),
        ("mem1", ..., "mem1: expected an object with GiB, GBps and MB_efficiency, found nothing"),
        ("mem2.GiB", -80, "mem2.GiB: expected a number > 0, found -80"),
        ("mem2.GBps", None, "mem2.GBps: expected a number > 0, found null"),
        ("processing_mode", "fast", 'processing_mode: expected "roofline" or "no_overlap", found "fast"'),
        ("networks", [], "networks: expected a list of at least one tier, found []"),
        ("networks", {"0": 1}, "networks: expected a list of at least one tier, found an object"),
        ("networks.1", [[1]], "networks[1]: expected an object, one tier, found a list of 1"),
        ("networks.1.bandwidth", 0, "networks[1].bandwidth: expected a number > 0, found 0"),
        ("networks.1.efficiency", 2, "networks[1].efficiency: expected a number in (0, 1], found 2"),
        ("networks.1.size", 0, "networks[1].size: expected a whole number >= 1, found 0"),
        ("networks.1.size", 8.5, "networks[1].size: expected a whole number >= 1, found 8.5"),
        ("networks.1.latency", -1e-6, "networks[1].latency: expected a number of seconds in [0, 1], found -1e-06"),
        ("networks.1.latency", 3, "networks[1].latency: expected a number of seconds in [0, 1], found 3"),
        ("networks.1.must_be_filled", 1, "networks[1].must_be_filled: expected true or false, found 1"),
        ("networks.1.processor_usage", 1, "networks[1].processor_usage: expected a number in [0, 1), found 1"),
        ("networks.0.ops", ..., "networks[0].ops: expected an object of rows [scalar, offset], found nothing"),
        ("networks.0.ops.p2p", ..., "networks[0].ops.p2p: expected a row [scalar, offset], found nothing"),
        ("networks.0.ops.p2p", 1.0, "networks[0].ops.p2p: expected a row [scalar, offset], found 1.0"),
        ("networks.0.ops.p2p", [], "networks[0].ops.p2p[0]: expected two values in the row, found nothing"),
        ("networks.0.ops.all_reduce.0", 0, "networks[0].ops.all_reduce[0]: expected a number > 0, found 0"),
        ("networks.0.ops.all_reduce.1", "x", 'networks[0].ops.all_reduce[1]: expected a number or null, found "x"'),
        (
            "networks.0.ops.all_reduce.1",
            -3,
            "networks[0].ops.all_reduce[1]: expected a number >= -2 or null (a lower one makes the time of 2 ranks "
            "negative), found -3",
        ),
        ("mem1.usable_GIB", 3, "mem1.usable_GIB: expected a key that is known; did you mean usable_GiB?"),
        ("mem1.Gbps", 3, "mem1.Gbps: expected a key that is known; did you mean GBps?"),
        ("networks.0.bandwith", 3, "networks[0].bandwith: expected a key that is known; did you mean bandwidth?"),
        ("matrix.float16.tflop", 3, "matrix.float16.tflop: expected a key that is known; did you mean tflops?"),
        ("networks.0.ops.my op", 3, 'networks[0].ops["my op"]: expected a row [scalar, offset], found 3'),
    ],
)
def test_each_fault_names_its_place_what_was_expected_and_found(path: str, value: Any, fault: str) -> None:
    assert fault in faults_of(put(path, value))


def test_one_error_lists_every_fault_by_file_and_key_path(tmp_path: Path) -> None:
    config = put("mem1.GiB", -1)
    config["networks"][1]["ops"]["all_reduce"][1] = "x"
    del config["processing_mode"]
    path = saved(tmp_path, json.dumps(config))
    with pytest.raises(HardwareConfigError, match=r"mine\.json: 3 faults\n") as caught:
        load_config(path)
    assert str(caught.value).splitlines()[1:] == [f"{path}: {fault}" for fault in caught.value.faults]
    assert (caught.value.path, len(caught.value.faults)) == (str(path), 3)


def test_of_many_faults_the_first_are_told_and_all_are_kept(tmp_path: Path) -> None:
    with pytest.raises(HardwareConfigError, match="12 faults\n") as caught:
        load_config({**data(), "networks": [3] * 12})
    lines = str(caught.value).splitlines()
    assert (len(lines), lines[-1], len(caught.value.faults)) == (10, "... and 4 more", 12)


def test_a_file_that_is_no_config_is_one_fault(tmp_path: Path) -> None:
    found = faults_of(saved(tmp_path, '{"dependencies": {}, "version": "1.0.0"}'))
    assert found == (
        "expected a hardware config, an object with matrix, vector, mem1, mem2, processing_mode, networks; found one "
        'with "dependencies", "version"; `minitrain hw show h100_80g_nvl8 --json` prints a config',
    )


def test_keys_that_come_twice_are_listed_with_their_paths(tmp_path: Path) -> None:
    text = json.dumps(data()).replace('"size": 64', '"size": 64, "size": 32, "size": -1')
    text = '{"mem1": 1, ' + text[1:]
    faults = faults_of(saved(tmp_path, text))
    assert faults == (
        "mem1: expected each key once, found it more than once; remove one",
        "networks[1].size: expected each key once, found it more than once; remove one",
        "networks[1].size: expected a whole number >= 1, found -1",
    )


def test_a_key_that_comes_twice_is_a_fault_even_if_all_else_is_well(tmp_path: Path) -> None:
    text = '{"processing_mode": "roofline", ' + json.dumps(data())[1:]
    assert len(faults_of(saved(tmp_path, text))) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "expected JSON, found a mistake in line 1, column 1"),
        (b'{\n "a": }', "expected JSON, found a mistake in line 2, column 7"),
        (b"[1, 2]", r"expected a JSON object, found \[1, 2\]"),
        (b"null", "expected a JSON object, found null"),
        (b"\xff\xfe{\x00}\x00", "expected UTF-8 text, found byte 0xff at offset 0; save the file as UTF-8"),
        (b"[" * 200_000, "expected at most a few levels of nesting, found too many"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "expected at most a few levels of nesting"),
        (b"9" * 5000, "expected a JSON object, found Infinity"),
        (b" " * 1_000_001, "expected a config file of at most 1000000 bytes, found 1000001"),
    ],
    ids=["empty", "syntax", "list", "null", "utf-16", "deep-list", "deep-object", "digits", "large"],
)
def test_a_file_that_cannot_be_believed_is_refused(tmp_path: Path, text: bytes, message: str) -> None:
    with pytest.raises(HardwareConfigError, match=rf"mine\.json: {message}"):
        load_config(saved(tmp_path, text))


def test_a_huge_file_is_refused_without_being_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.json"
    with path.open("wb") as file:
        file.truncate(100 * 2**30)
    with pytest.raises(HardwareConfigError, match="at most 1000000 bytes, found 107374182400"):
        load_config(path)


def test_missing_files_directories_and_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HardwareConfigError, match=r"nope\.json: expected a config file, found no such file"):
        load_config(tmp_path / "nope.json")
    with pytest.raises(HardwareConfigError, match="expected a config file, found a directory"):
        load_config(tmp_path)
    with pytest.raises(HardwareConfigError, match="expected a regular file, found a device"):
        load_config("/dev/null")
    with pytest.raises(HardwareConfigError, match=r"expected a readable config file, found: .*Not a directory"):
        load_config(saved(tmp_path, "{}") / "below")


@pytest.mark.parametrize("path", ["./a\0b", "./" + "x" * 5000, "./\ud800"])
def test_impossible_paths_are_refused(path: str) -> None:
    with pytest.raises(HardwareConfigError, match=r"expected a (readable )?config file, found") as caught:
        load_config(path)
    str(caught.value).encode()  # can be printed


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("h100", 'h100_80g_nvl8" or "h100_96g_nvl8'),
        ("H100", 'h100_80g_nvl8" or "h100_96g_nvl8'),
        ("NVIDIA H100 80GB HBM3", "h100_80g_nvl8"),
        ("A100", 'a100_40g" or "a100_80g'),
        ("A100-SXM4-80GB", "a100_80g"),
        ("GB200", "gb200_nvl72"),
        ("B200", "b200_192g_nvl8"),
        ("3090", "rtx_3090"),
        ("a100_80gb.json", "a100_80g"),
        ("mi300x_192_8", "mi300x_192g_8"),
    ],
)
def test_an_unknown_name_gets_the_closest_one_and_the_list(name: str, hint: str) -> None:
    with pytest.raises(
        HardwareConfigError, match=rf'did you mean "{hint}"\? shipped are a100_40g, .*, xeon_8480plus; give'
    ):
        load_config(name)


def test_clouds_machines_have_their_interfaces() -> None:
    for name in shipped_machines()["machines"]:
        inner, outer = load_config(name).networks
        about = shipped_machines()["machines"][name]
        assert load_config(name.partition("_")[2].upper()) == load_config(name)
        assert outer.nics == about["nics"]
        assert outer.bandwidth * inner.size == about["nics"] * about["Gbps"] / 8
        assert (outer.latency_across > 0) == ("network" in about)
    with pytest.raises(HardwareConfigError, match=r'did you mean "p5.48xlarge'):
        load_config("p5.48xlrge")


@pytest.mark.parametrize("name", ["", ".json", "qqqq", "x" * 300, "a\0b", "\ud800"])
def test_a_hopeless_name_gets_the_list(name: str) -> None:
    with pytest.raises(HardwareConfigError, match="found no such thing; shipped are") as caught:
        load_config(name)
    str(caught.value).encode()


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"x"


@pytest.mark.parametrize("source", [5, None, b"h100_80g_nvl8", [1], BytesPath()])
def test_other_types_are_refused(source: Any) -> None:
    with pytest.raises(HardwareConfigError, match="must be the name of a shipped config, a path, a mapping or"):
        load_config(source)


def test_mappings_that_contain_themselves_or_odd_keys_are_refused() -> None:
    loop = data()
    loop["mem1"]["loop"] = loop
    with pytest.raises(HardwareConfigError, match="config: expected at most a few levels of nesting"):
        load_config(loop)
    odd = data()
    odd["matrix"][5] = odd["matrix"]["float16"]
    assert faults_of(odd) == ('matrix["5"]: expected a string as key, found 5',)


@pytest.mark.parametrize("change", [lambda c: c["networks"].append(tier(8)), lambda c: c["networks"].reverse()])
def test_tiers_may_come_in_any_order_and_twice(change: Callable[[dict[str, Any]], None]) -> None:
    config = data()
    change(config)
    assert load_config(config).network(9).size == 64


def test_a_whole_size_written_as_a_float_is_an_integer() -> None:
    size = load_config(put("networks.1.size", 64.0)).networks[1].size
    assert (size, type(size)) == (64, int)


def test_importing_hardware_does_not_import_pydantic() -> None:
    code = "import sys, minitrain.machine; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def kernels() -> dict[str, Any]:
    one = {"efficiency": 0.6, "tail": 0.5, "head_efficiency": [[0, 1]]}
    rates = {"units": 108, "GBps": 1700, "launch": 2e-6, "graph_launch": 1e-6}
    matmul = {"float16": {"tflops": 260, "prologue": 146}}
    return {**rates, "matmul": matmul, "attention": {"flash2": {"forward": one, "backward": dict(one)}}}


def test_kernels_and_curves_may_be_missing_and_are_read_where_given() -> None:
    bare = load_config(data())
    assert (bare.kernels, dict(bare.networks[0].curves), bare.networks[0].nics) == (None, {}, None)
    config = {**data(), "kernels": kernels()}
    config["networks"][0] |= {"nics": 4, "curves": {"p2p": {"latency": 1e-5, "half_MB": 2}}}
    full = load_config(config)
    assert full.kernels is not None
    assert (full.kernels.num_units, full.kernels.matmul["float16"].tflops) == (108, 260)
    assert (full.networks[0].nics, full.networks[0].curves["p2p"].half_bytes) == (4, 2e6)


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (
            "kernels",
            5,
            "kernels: expected an object with units, GBps, launch, graph_launch, matmul and attention, found 5",
        ),
        ("kernels.units", 0, "kernels.units: expected a whole number >= 1, found 0"),
        ("kernels.matmul", {}, "kernels.matmul: expected an object with at least one datatype, found an object"),
        ("kernels.matmul.float16", 7, "kernels.matmul.float16: expected an object with tflops and prologue, found 7"),
        ("kernels.matmul.float16.prologue", -1, "kernels.matmul.float16.prologue: expected a number >= 0, found -1"),
        (
            "kernels.attention.flash2",
            [],
            "kernels.attention.flash2: expected an object with forward and backward, found []",
        ),
        (
            "kernels.attention.flash2.forward",
            ...,
            "kernels.attention.flash2.forward: expected an object with efficiency, tail and head_efficiency, "
            "found nothing",
        ),
        (
            "kernels.attention.flash2.forward.efficiency",
            1.5,
            "kernels.attention.flash2.forward.efficiency: expected a number in (0, 1], found 1.5",
        ),
        ("networks.0.nics", 1.5, "networks[0].nics: expected a whole number >= 1, found 1.5"),
        ("networks.0.curves", [], "networks[0].curves: expected an object of operations, found []"),
        (
            "networks.0.curves",
            {"p2p": 3},
            "networks[0].curves.p2p: expected an object with latency, and ranks_GBps or efficiency, found 3",
        ),
        (
            "networks.0.curves",
            {"p2p": {"latency": 0, "ranks_GBps": 3}},
            "networks[0].curves.p2p.ranks_GBps: expected a list of rows [lower bound, GB/s], found 3",
        ),
        (
            "networks.0.curves",
            {"p2p": {"latency": 0, "ranks_GBps": [[2, 100]]}},
            "networks[0].curves.p2p.ranks_GBps: expected rows with strictly descending lower bounds, the last one 0, "
            "found bounds 2",
        ),
    ],
)
def test_a_fault_in_kernels_or_curves_names_path_found_and_expected(path: str, value: Any, fault: str) -> None:
    config: Any = {**data(), "kernels": kernels()}
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    place = config
    for key in parents:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    assert faults_of(config) == (fault,)

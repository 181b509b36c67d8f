"""All measurements, one after the other: `python -m benchmarks [--only NAME]...`; `make bench` is the same.

Each is a script of its own that prints a JSON object; what README and docs promise is taken out of them, printed, and
written to `build/bench.json`, a flat object. The machine should have nothing else to do.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
RESULT = FOLDER.parent / "build" / "bench.json"


def hot_path(found: dict[str, Any]) -> dict[str, float]:
    """What a record costs the scheduler's thread."""
    return {
        "hot_path_ratio_lookup": found["lookup"]["ratio"],
        "hot_path_ratio_step": found["step"]["ratio"],
        "hot_path_us_lookup": found["lookup"]["record_us"],
        "hot_path_us_step": found["step"]["record_us"],
    }


def scheduler_overhead(found: dict[str, Any]) -> dict[str, float]:
    """What everything costs the scheduler: the mean over the cases, and each of them."""
    cases = list(found.values())
    flat = {
        "scheduler_overhead_percent": sum(case["on"]["overhead_percent"] for case in cases) / len(cases),
        "scheduler_overhead_percent_sdk": sum(case["sdk"]["overhead_percent"] for case in cases) / len(cases),
        "scheduler_p99_ratio": sum(case["on"]["p99_ratio"] for case in cases) / len(cases),
    }
    for name, case in found.items():
        key = name.replace("/", "_")
        flat[f"scheduler_overhead_percent_{key}"] = case["on"]["overhead_percent"]
        flat[f"scheduler_p99_ratio_{key}"] = case["on"]["p99_ratio"]
    return flat


def engine_load(found: dict[str, Any]) -> dict[str, float]:
    """What a user of the server sees: on over off, and as noise off over off; with 95 % intervals."""
    flat: dict[str, float] = {}
    for measured in ("throughput", "p99_first_token"):
        for key, pair in (("", "on"), ("_noise", "off_again")):
            name = f"engine_{measured}_ratio{key}"
            said = found[pair][measured]
            flat |= {name: said["ratio"], f"{name}_low": said["low"], f"{name}_high": said["high"]}
    return flat


def sidecar_export(found: dict[str, Any]) -> dict[str, float]:
    """What the sidecar takes in and sends out."""
    return {name: float(found[name]) for name in ("sidecar_spans_per_s", "sidecar_lost", "sidecar_rss_highest_mib")}


def reading(found: dict[str, Any]) -> dict[str, float]:
    """How fast a million spans become typed columns, how many times as fast as in other programs, and the analysis."""
    rate = {name: each["spans_per_s"] for name, each in found.items() if "spans_per_s" in each}
    whole, shared, tenth = found["json_analysis"], found["shared_analysis"], found["tenth_analysis"]
    seconds = [each["read_seconds"] + each["analyze_seconds"] for each in (whole, tenth)]
    return {
        "read_json_spans_per_s": rate["json_ours"],
        "read_json_ratio_tracelift": rate["json_ours"] / rate["json_tracelift"],
        "read_json_ratio_duckdb": rate["json_ours"] / rate["json_duckdb"],
        "read_json_peak_mb": found["json_ours"]["peak_mb"],
        "read_protobuf_spans_per_s": rate["protobuf_ours"],
        "read_protobuf_ratio_tracelift": rate["protobuf_ours"] / rate["json_tracelift"],
        "read_protobuf_ratio_duckdb": rate["protobuf_ours"] / rate["json_duckdb"],
        "read_parquet_spans_per_s": rate["parquet_ours"],
        "open_capture_json_spans_per_s": whole["spans"] / whole["read_seconds"],
        "open_capture_parquet_spans_per_s": rate["parquet_whole"],
        "open_capture_parquet_peak_mb": found["parquet_whole"]["peak_mb"],
        "analyze_seconds": whole["analyze_seconds"],
        "analyze_peak_mb": whole["peak_mb"],
        # Ten times the capture.
        "read_json_tenfold_time_ratio": found["json_ours"]["seconds"] / found["tenth_ours"]["seconds"],
        "read_json_tenfold_peak_ratio": found["json_ours"]["peak_mb"] / found["tenth_ours"]["peak_mb"],
        "analyze_tenfold_time_ratio": seconds[0] / seconds[1],
        "analyze_tenfold_peak_ratio": whole["peak_mb"] / tenth["peak_mb"],
        "analyze_shared_prefix_seconds": shared["analyze_seconds"],
        "analyze_shared_prefix_peak_mb": shared["peak_mb"],
    }


def sweep(found: dict[str, Any]) -> dict[str, float]:
    """What a sweep costs beside as many replays, in CPU and on the clock (of a process), and its memory."""
    replays = {key: found["settings"] * found["replay"][key] for key in ("cpu_s", "wall_s")}
    return {
        "replay_cpu_s": found["replay"]["cpu_s"],
        "replay_peak_mb": found["replay"]["peak_mb"],
        "sweep_cpu_ratio": found["sweep_1"]["cpu_s"] / replays["cpu_s"],
        "sweep_wall_ratio": found["sweep_1"]["wall_s"] / replays["wall_s"],
        "sweep_wall_ratio_two_processes": 2 * found["sweep_2"]["wall_s"] / replays["wall_s"],
        "sweep_peak_mb": found["sweep_1"]["peak_mb"],
    }


MEASUREMENTS: dict[str, Callable[[dict[str, Any]], dict[str, float]]] = {
    "hot_path": hot_path,
    "scheduler_overhead": scheduler_overhead,
    "sidecar_export": sidecar_export,
    "engine_load": engine_load,
    "reading": reading,
    "sweep": sweep,
}


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=MEASUREMENTS, action="append")
    options = parser.parse_args()
    RESULT.parent.mkdir(exist_ok=True)
    flat: dict[str, float] = json.loads(RESULT.read_text()) if RESULT.exists() and options.only else {}
    for name in options.only or MEASUREMENTS:
        print(f"measuring {name}", file=sys.stderr)
        done = subprocess.run([sys.executable, FOLDER / f"{name}.py"], stdout=subprocess.PIPE, text=True, check=True)
        for key, value in MEASUREMENTS[name](json.loads(done.stdout)).items():
            flat[key] = round(value, 3)
            print(f"  {key:48} {flat[key]:>12}")
        RESULT.write_text(json.dumps(flat, indent=2) + "\n")


if __name__ == "__main__":
    main()

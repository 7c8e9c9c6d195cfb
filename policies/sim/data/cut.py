#!/usr/bin/env python3
"""Makes the tables of the simulator out of the public ones.

    cut.py TRACES_FOLDER [OUTPUT_FOLDER]

Writes philly.csv.gz, philly-hosts.csv, helios-earth.csv.gz, openb-pods.csv.gz and openb-hosts.csv:
the same bytes for the same inputs. README.md says where the inputs come from and what each column
means.
"""

import collections
import csv
import gzip
import io
import pathlib
import sys
from datetime import datetime

PHILLY_BEGIN = datetime(2017, 9, 4)
PHILLY_JOBS = 82_247


def rows_of(path: pathlib.Path) -> list[dict[str, str]]:
    opened = gzip.open(path, "rt", newline="") if path.suffix == ".gz" else open(path, newline="")
    with opened as rows:
        return list(csv.DictReader(rows))


def written(header: list[str], rows: list[list]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode()


def pack(path: pathlib.Path, text: bytes) -> None:
    # No name and no time in the header of the archive, or two runs would differ.
    with open(path, "wb") as raw:
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
            packed.write(text)


def seconds(text: str) -> int:
    return int((datetime.strptime(text, "%Y-%m-%d %H:%M:%S") - PHILLY_BEGIN).total_seconds())


def philly(source: pathlib.Path) -> list[list]:
    jobs = []
    for row in rows_of(source / "philly-jobs-2017" / "philly.csv.gz"):
        length, gpus = int(float(row["duration"])), int(row["num_gpus"])
        jobs.append([seconds(row["timestamp"]), length, gpus, row["cluster"]])
    # Stable: jobs of one second keep the order of the table.
    jobs.sort(key=lambda job: job[0])
    assert len(jobs) == PHILLY_JOBS, f"{len(jobs)} jobs, expected {PHILLY_JOBS}"
    return jobs


def philly_hosts(source: pathlib.Path) -> list[list]:
    steps, last = [], None
    for row in rows_of(source / "philly-nodes-2017" / "philly_node_sequence.csv.gz"):
        if row["total"] != last:
            last = row["total"]
            steps.append([seconds(row["time"]), int(last)])
    return steps


def helios(source: pathlib.Path) -> list[list]:
    rows = []
    for row in rows_of(source / "helios-earth-2020-derived" / "earth_vc_hourly.csv.gz"):
        day, hour = row["hour"].split("T")
        hours = (datetime.fromisoformat(day) - datetime(2020, 5, 1)).days * 24 + int(hour)
        gpus = round(float(row["running_gpu"]) + float(row["pending_gpu"]))
        jobs = round(float(row["running_gpu_jobs"]) + float(row["pending_gpu_jobs"]))
        rows.append([hours, row["vc"], round(float(row["total_gpu"])), gpus, jobs])
    rows.sort(key=lambda row: (row[0], row[1]))
    return rows


def openb_pods(source: pathlib.Path) -> list[list]:
    pods = []
    for row in rows_of(source / "openb-2023" / "openb_pod_list_default.csv.gz"):
        # Pods without a GPU, and pods that never got a host, are no work for a GPU fleet.
        if row["num_gpu"] == "0" or not row["scheduled_time"]:
            continue
        created, ended = int(float(row["creation_time"])), int(float(row["deletion_time"]))
        started = int(float(row["scheduled_time"]))
        spec = [row[key] for key in ("num_gpu", "cpu_milli", "memory_mib", "gpu_spec", "qos")]
        pods.append([created, max(ended - started, 0), *spec])
    pods.sort(key=lambda pod: pod[0])
    return pods


def openb_hosts(source: pathlib.Path) -> list[list]:
    alike = collections.Counter(
        (row["model"], int(row["gpu"]), int(row["cpu_milli"]), int(row["memory_mib"]))
        for row in rows_of(source / "openb-2023" / "openb_node_list_gpu_node.csv")
    )
    return [
        ["openb", f"{model.lower()}", model.lower(), count, gpus, f"{cpu}m", f"{memory}Mi"]
        for (model, gpus, cpu, memory), count in sorted(alike.items())
    ]


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    source = pathlib.Path(sys.argv[1])
    output = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else pathlib.Path(__file__).parent
    pack(
        output / "philly.csv.gz",
        written(["submit_s", "duration_s", "gpus", "vc"], philly(source)),
    )
    hosts = written(["at_s", "hosts"], philly_hosts(source))
    (output / "philly-hosts.csv").write_bytes(hosts)
    pack(
        output / "helios-earth.csv.gz",
        written(["hour", "vc", "quota_gpus", "asked_gpus", "jobs"], helios(source)),
    )
    pack(
        output / "openb-pods.csv.gz",
        written(
            ["created_s", "ran_s", "gpus", "cpu_milli", "memory_mib", "models", "qos"],
            openb_pods(source),
        ),
    )
    columns = ["cluster", "pool", "flavor", "hosts", "gpus", "cpu", "memory"]
    (output / "openb-hosts.csv").write_bytes(written(columns, openb_hosts(source)))


if __name__ == "__main__":
    main()

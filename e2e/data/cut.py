#!/usr/bin/env python3
"""Cuts the public traces of the playground out of the full ones.

    cut.py PHILLY_CSV_GZ OPENB_NODES_CSV [OUTPUT_FOLDER]

Writes philly-week.csv.gz and openb-nodes.csv: the same bytes for the same inputs. README.md says
where the inputs come from and what each column means.
"""

import csv
import gzip
import io
import pathlib
import sys
from datetime import datetime, timedelta

WEEK_START = datetime(2017, 10, 23)
WEEK = timedelta(days=7)
WEEK_JOBS = 7_748

# Which nodes each cluster gets: (model, GPUs per node, nodes, nodes per rack), taken in the order
# of the inventory. A rack of G2 or G3 holds 32 GPUs, so that a 32-GPU gang fits in one.
CLUSTERS = [
    ("us-west", "usw-a", [("G2", 8, 36, 4), ("V100M32", 8, 4, 4), ("T4", 2, 10, 5)]),
    (
        "eu-central",
        "euc-a",
        [("G2", 8, 28, 4), ("V100M32", 8, 2, 4), ("P100", 2, 8, 8), ("T4", 2, 8, 8)],
    ),
    ("ap-east", "ape-a", [("G2", 8, 20, 4), ("G3", 8, 4, 4), ("T4", 2, 8, 8)]),
]
RACKS_PER_BLOCK = 4
GPUS = 820


def cut_jobs(source: pathlib.Path) -> list[tuple[int, int, int, str]]:
    """Jobs submitted in the week as (submit s, duration s, GPUs, virtual cluster), in order."""
    jobs = []
    with gzip.open(source, "rt", newline="") as rows:
        for row in csv.DictReader(rows):
            submitted = datetime.strptime(row["timestamp"], "%Y-%m-%d %H:%M:%S")
            if WEEK_START <= submitted < WEEK_START + WEEK:
                offset = int((submitted - WEEK_START).total_seconds())
                duration = int(float(row["duration"]))
                jobs.append((offset, duration, int(row["num_gpus"]), row["cluster"]))
    # Stable: jobs of one second keep the order of the table.
    jobs.sort(key=lambda job: job[0])
    assert len(jobs) == WEEK_JOBS, f"{len(jobs)} jobs in the week, expected {WEEK_JOBS}"
    return jobs


def cut_nodes(source: pathlib.Path) -> list[list[str]]:
    """Nodes of the three clusters with their place in the topology."""
    with open(source, newline="") as rows:
        inventory = list(csv.DictReader(rows))
    chosen: list[list[str]] = []
    taken: set[str] = set()
    for region, cluster, shares in CLUSTERS:
        block = 0
        for model, gpus, count, per_rack in shares:
            alike = [
                node
                for node in inventory
                if node["model"] == model and int(node["gpu"]) == gpus and node["sn"] not in taken
            ][:count]
            assert len(alike) == count, f"too few {model} nodes of {gpus} GPUs for {cluster}"
            for index, node in enumerate(alike):
                taken.add(node["sn"])
                rack_index = index // per_rack
                block_name = f"{cluster}-b{block + rack_index // RACKS_PER_BLOCK + 1}"
                rack_name = f"{block_name}-r{rack_index % RACKS_PER_BLOCK + 1}"
                hardware = [node[key] for key in ("sn", "cpu_milli", "memory_mib", "gpu", "model")]
                chosen.append([*hardware, region, cluster, model.lower(), block_name, rack_name])
            # A block holds hosts of one pool.
            block += -(-count // (per_rack * RACKS_PER_BLOCK))
    total = sum(int(node[3]) for node in chosen)
    assert total == GPUS, f"{total} GPUs chosen, expected {GPUS}"
    return chosen


def main() -> None:
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    philly, openb = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    output = pathlib.Path(sys.argv[3]) if len(sys.argv) == 4 else pathlib.Path(__file__).parent

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["submit_s", "duration_s", "gpus", "vc"])
    writer.writerows(cut_jobs(philly))
    # No name and no time in the header of the archive, or two runs would differ.
    with open(output / "philly-week.csv.gz", "wb") as raw:
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
            packed.write(text.getvalue().encode())

    with open(output / "openb-nodes.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["sn", "cpu_milli", "memory_mib", "gpu", "model"]
            + ["region", "cluster", "pool", "block", "rack"]
        )
        writer.writerows(cut_nodes(openb))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Cuts the nodes of the playground out of the public inventory.

    cut.py OPENB_NODES_CSV [OUTPUT_FOLDER]

Writes openb-nodes.csv: the same bytes for the same input. README.md says where the input comes from
and what each column means.
"""

import csv
import pathlib
import sys

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
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    openb = pathlib.Path(sys.argv[1])
    output = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else pathlib.Path(__file__).parent
    with open(output / "openb-nodes.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["sn", "cpu_milli", "memory_mib", "gpu", "model"]
            + ["region", "cluster", "pool", "block", "rack"]
        )
        writer.writerows(cut_nodes(openb))


if __name__ == "__main__":
    main()
